"""`rca logs`: what each rank was doing."""
