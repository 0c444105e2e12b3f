"""Where a rank stands in the parallel layout of its job."""

from typing import NamedTuple


class Place(NamedTuple):
    """The indices of one rank; `cp_size` is how many ranks share the tokens of a batch."""

    tp: int = 0
    pp: int = 0
    dp: int = 0
    cp: int = 0
    ep: int | None = None
    cp_size: int = 1
    last_stage: bool = True

    @property
    def counts(self) -> bool:
        """Whether this rank speaks for its replica's tokens and samples: the first of those that compute its loss."""
        return self.tp == 0 and self.cp == 0 and self.last_stage

    def labels(self) -> dict[str, str]:
        """Return the labels of `train_rank_info`."""
        known = {"dp_rank": self.dp, "tp_rank": self.tp, "pp_rank": self.pp, "cp_rank": self.cp, "ep_rank": self.ep}
        return {name: str(value) for name, value in known.items() if value is not None}


class Layout(NamedTuple):
    """The sizes of a job's groups; data parallel is what remains. Ranks count up in the order tp, cp, ep, dp, pp.

    Experts have groups of their own: inside a stage their ranks count up as tensor, expert, data.
    Source: Megatron-LM, `RankGenerator` in core/parallel_state.py, default order "tp-cp-ep-dp-pp"; the dense one has no
    expert index and the expert one no context index, and experts are as tensor-parallel as the rest by default.

    >>> Layout(tp=2, pp=2).place(5, world=8)
    Place(tp=1, pp=1, dp=0, cp=0, ep=None, cp_size=1, last_stage=True)
    >>> Layout(tp=2, cp=2, ep=2).place(6, world=8)
    Place(tp=0, pp=0, dp=1, cp=1, ep=1, cp_size=2, last_stage=True)
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1

    def dp(self, world: int) -> int:
        """Return the size of the data-parallel groups, 0 where the sizes do not divide the world.

        >>> Layout(tp=8, pp=4).dp(256), Layout(tp=3).dp(8)
        (8, 0)
        """
        sizes = (self.tp, self.pp, self.cp, self.ep)
        if min(sizes) < 1 or world < 1:
            return 0
        dp, rest = divmod(world, self.tp * self.pp * self.cp)
        return 0 if rest or (self.cp * dp) % self.ep else dp

    def place(self, rank: int, world: int) -> Place | None:
        """Return where a rank stands, None where the sizes do not fit the world."""
        dp = self.dp(world)
        if not dp or not 0 <= rank < world:
            return None
        rest, tp = divmod(rank, self.tp)
        cp, stage = rest % self.cp, rest // self.cp
        return Place(
            tp=tp, pp=stage // dp, dp=stage % dp, cp=cp, cp_size=self.cp, last_stage=stage // dp == self.pp - 1,
            ep=rest % (self.cp * dp) % self.ep if self.ep > 1 else None,
        )  # fmt: skip

    def labels(self, world: int) -> dict[str, str]:
        """Return the labels of `train_job_info`."""
        sizes = {"dp": self.dp(world), "tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep}
        return {name: str(size) for name, size in sizes.items() if size}
