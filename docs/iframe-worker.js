// The search runs in a Worker, and browsers start none for a page that is read from a disk. There it runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      // As between threads: each side gets a copy, later.
      this.inside.postMessage = (data) => setTimeout((copy) => this.hear(copy), 0, structuredClone(data));
      const script = this.inside.document.createElement("script");
      script.src = url;
      script.onload = () => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.tell(data));
      };
      this.inside.document.body.append(script);
    }

    hear(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    tell(data) {
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }

    postMessage(data) {
      const copy = this.inside.structuredClone(data);
      if (this.ready) setTimeout(() => this.tell(copy));
      else this.waiting.push(copy);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
