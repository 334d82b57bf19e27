// One answer of the server that stays open: it sends a line whenever something has changed. Nothing is asked while the page is hidden.
const AGAIN_MS = 2000;

export class Follower {
  constructor(onnews, onlost) {
    this.onnews = onnews;
    this.onlost = onlost;
    this.wish = null; // what the page shows, as the server wants to know it
    this.stream = null;
    document.addEventListener("visibilitychange", () => { if (document.hidden) this.close(); else if (this.wish) this.open(); });
  }

  // Charts come into sight and leave it one after another: waiting a little makes one request of many.
  ask(wish, waitMs = 0) {
    const text = JSON.stringify(wish);
    if (text === this.text && (this.stream || this.timer)) return;
    this.wish = wish;
    this.text = text;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => { this.timer = null; this.open(); }, waitMs);
  }

  close() {
    this.stream?.abort();
    this.stream = null;
    clearTimeout(this.timer);
    this.timer = null;
  }

  async open() {
    this.close();
    if (document.hidden) return;
    const stream = this.stream = new AbortController(), wish = this.wish;
    try {
      const answer = await fetch(`/api/follow?${new URLSearchParams({ wish: this.text })}`, { cache: "no-store", signal: stream.signal });
      if (!answer.ok) throw new Error(String(answer.status));
      const reader = answer.body.getReader(), decoder = new TextDecoder();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
        rest = lines.pop();
        for (const line of lines) if (this.stream === stream) this.onnews(JSON.parse(line), wish);
      }
    } catch (error) { if (this.stream === stream) console.warn(String(error)); }
    if (this.stream !== stream) return; // closed, or another one took its place
    this.onlost();
    this.timer = setTimeout(() => this.open(), AGAIN_MS);
  }
}
