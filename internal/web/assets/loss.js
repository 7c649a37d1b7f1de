// The loss of paths, from the segments that this host sent again of those that it sent in the last states.
const states = 10, least = 20;

export class Losses {
	last = new Map(); // the counts of each subflow
	lists = new Map(); // by path, and by path and server: what was added in each state

	take(status, keysOf) {
		const added = new Map(), last = new Map();
		for (const c of status.client?.connections ?? []) for (const s of c.subflows) {
			const id = `${s.local} ${s.remote} ${s.since}`, was = this.last.get(id);
			last.set(id, s);
			for (const key of keysOf(c, s)) {
				const sum = added.get(key) ?? {sent: 0, again: 0};
				if (was && s.segments_sent >= was.segments_sent) {
					sum.sent += s.segments_sent - was.segments_sent;
					sum.again += s.segments_retransmitted - was.segments_retransmitted;
				}
				added.set(key, sum);
			}
		}
		this.last = last;
		for (const key of this.lists.keys()) if (!added.has(key)) this.lists.delete(key);
		for (const [key, sum] of added) this.lists.set(key, [...this.lists.get(key) ?? [], sum].slice(-states));
	}

	// of returns the share that was lost, or undefined if too little was sent.
	of(key) {
		let sent = 0, again = 0;
		for (const sum of this.lists.get(key) ?? []) sent += sum.sent, again += sum.again;
		return sent < least ? undefined : Math.min(again / sent, 1);
	}
}
