// Keeps the list of incidents fresh: when the server says that there is another version, the list is fetched and put in
// the place of the old one. Without this script the page shows what it showed when it was loaded.
"use strict";

const told = document.getElementById("live");
const PATIENCE = 30000;
let busy = false;
let wanted = "";

function list() {
  return document.getElementById("list");
}

async function refresh() {
  if (busy) {
    return;
  }
  busy = true;
  try {
    while (wanted !== list().dataset.version) {
      const asked = wanted;
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      const fresh = answer.ok && new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("list");
      if (!fresh) {
        break;
      }
      list().replaceWith(document.adoptNode(fresh));
      if (wanted === asked) {
        break;
      }
    }
  } catch {
    told.textContent = "The list could not be fetched.";
  } finally {
    busy = false;
  }
}

function listen() {
  const events = new EventSource("api/v1/events");
  events.addEventListener("open", () => {
    told.textContent = "The list keeps itself up to date.";
  });
  events.addEventListener("incidents", (event) => {
    wanted = JSON.parse(event.data).version;
    refresh();
  });
  events.addEventListener("error", () => {
    told.textContent = "The list is not up to date: the server does not answer.";
    if (events.readyState === EventSource.CLOSED) {
      setTimeout(listen, PATIENCE);
    }
  });
  addEventListener("pagehide", () => events.close(), { once: true });
}

addEventListener("pageshow", (event) => {
  if (event.persisted) {
    listen();
  }
});
listen();
