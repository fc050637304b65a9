// One event stream for this tab: paused while the tab is hidden, resumed where it was, and watched for silence.

const SILENT_MS = 6000;

export class Stream {
  /** `onPanels(changed)`, `onTrouble({since, message})` and `onLink(word, since)` are called as things happen. */
  constructor({ onPanels, onTrouble, onLink }) {
    Object.assign(this, { onPanels, onTrouble, onLink });
    this.query = "";
    this.lastId = "";
    this.heardAt = Date.now();
    this.source = null;
    document.addEventListener("visibilitychange", () => this.follow());
    setInterval(() => this.watch(), 1000);
  }

  /** Ask for other panels: from the beginning, since the last id was of the panels asked for before. */
  open(query) {
    this.query = query;
    this.lastId = "";
    this.close();
    this.follow();
  }

  follow() {
    if (document.hidden) { this.close(); return; }
    if (this.source) { return; }
    this.heardAt = Date.now();
    const after = this.lastId ? `&after=${encodeURIComponent(this.lastId)}` : "";
    this.source = new EventSource(`/stream?${this.query}${after}`);
    this.source.addEventListener("panels", (event) => this.hear(event, this.onPanels));
    this.source.addEventListener("trouble", (event) => this.hear(event, this.onTrouble));
  }

  close() {
    if (this.source) { this.source.close(); }
    this.source = null;
  }

  hear(event, tell) {
    this.heardAt = Date.now();
    this.lastId = event.lastEventId || this.lastId;
    if (tell === this.onPanels) { this.onLink("live", null); }
    tell(JSON.parse(event.data));
  }

  watch() {
    if (document.hidden || Date.now() - this.heardAt < SILENT_MS) { return; }
    this.onLink("lost", this.heardAt / 1000);
    // A browser gives up on a stream that was answered with an error; ask again.
    if (this.source && this.source.readyState === EventSource.CLOSED) { this.reopen(); }
  }

  reopen() {
    const heardAt = this.heardAt;
    this.close();
    this.follow();
    this.heardAt = heardAt;
  }
}
