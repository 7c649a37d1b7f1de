package report

import "net/netip"

// Merge adds the totals of another worker.
func (t *Totals) Merge(o *Totals) {
	for _, n := range []struct{ to, from *uint64 }{
		{&t.Connections, &o.Connections}, {&t.Midway, &o.Midway}, {&t.AllSubflows, &o.AllSubflows}, {&t.WrongHMAC, &o.WrongHMAC},
		{&t.IPv4, &o.IPv4}, {&t.IPv6, &o.IPv6}, {&t.Bytes, &o.Bytes}, {&t.Empty, &o.Empty}, {&t.Within10ms, &o.Within10ms},
		{&t.Above1s, &o.Above1s}, {&t.Additional, &o.Additional}, {&t.Unused, &o.Unused}, {&t.UnusedBetter, &o.UnusedBetter},
		{&t.UnusedCompared, &o.UnusedCompared}, {&t.WithUnused, &o.WithUnused}, {&t.Several, &o.Several}, {&t.Reinjecting, &o.Reinjecting},
		{&t.Retransmitting, &o.Retransmitting}, {&t.Reinjected, &o.Reinjected}, {&t.Retransmitted, &o.Retransmitted},
		{&t.Reinjections, &o.Reinjections}, {&t.Stalls, &o.Stalls}, {&t.StalledConns, &o.StalledConns}, {&t.Blockages, &o.Blockages},
		{&t.BlockedConns, &o.BlockedConns}, {&t.UnusedSize[0], &o.UnusedSize[0]}, {&t.UnusedSize[1], &o.UnusedSize[1]},
	} {
		*n.to += *n.from
	}
	for _, m := range []struct{ to, from *map[string]uint64 }{
		{&t.Versions, &o.Versions}, {&t.Fallbacks, &o.Fallbacks}, {&t.Ends, &o.Ends}, {&t.Shapes, &o.Shapes}, {&t.Anomalies, &o.Anomalies},
		{&t.States, &o.States}, {&t.ReinjectedAfter, &o.ReinjectedAfter}, {&t.Handovers, &o.Handovers},
	} {
		for key, n := range *m.from {
			put(m.to, key, n)
		}
	}
	for _, h := range []struct{ to, from *Histogram }{
		{&t.Duration, &o.Duration}, {&t.Size, &o.Size}, {&t.Joins, &o.Joins}, {&t.FirstJoins, &o.FirstJoins}, {&t.Goodput, &o.Goodput}, {&t.SubflowRTT, &o.SubflowRTT},
		{&t.SubflowGoodput, &o.SubflowGoodput}, {&t.RTTChange, &o.RTTChange}, {&t.Spread, &o.Spread}, {&t.ReinjectedShare, &o.ReinjectedShare}, {&t.RepeatedShare, &o.RepeatedShare}, {&t.HandoverGaps, &o.HandoverGaps},
		{&t.EchoDelay, &o.EchoDelay}, {&t.MaxFlight, &o.MaxFlight}, {&t.Idle, &o.Idle},
		{&t.SecondBest[0], &o.SecondBest[0]}, {&t.SecondBest[1], &o.SecondBest[1]}, {&t.SecondBest[2], &o.SecondBest[2]}, {&t.SecondBest[3], &o.SecondBest[3]},
	} {
		h.to.merge(h.from)
	}
	for n, connections := range o.Subflows {
		put(&t.Subflows, n, connections)
	}
	t.MaxSubflows = max(t.MaxSubflows, o.MaxSubflows)
	t.Stalled += o.Stalled
	t.Blocked += o.Blocked
	t.mergeLargest(o.Largest)
	t.mergeRest(o)
}

// mergeRest adds what is counted by class, port, address or kind.
func (t *Totals) mergeRest(o *Totals) {
	for i, n := range o.JoinsWithin {
		t.JoinsWithin[i] += n
	}
	for i := range t.Initial {
		a, b := &t.Initial[i], &o.Initial[i]
		a.Connections += b.Connections
		a.Alone += b.Alone
		a.Most += b.Most
		for j, n := range b.Shares {
			a.Shares[j] += n
		}
	}
	for i := range t.RepeatAt {
		t.RepeatAt[i] += o.RepeatAt[i]
		t.ReinjectionAt[i] += o.ReinjectionAt[i]
	}
	if t.Ports == nil {
		t.Ports, t.clients, t.prefixes = map[uint16]Traffic{}, map[netip.Addr]struct{}{}, map[netip.Prefix]struct{}{}
		t.fallen = map[netip.Addr]struct{}{}
	}
	for port, p := range o.Ports {
		q := t.Ports[port]
		t.Ports[port] = Traffic{q.Connections + p.Connections, q.Bytes + p.Bytes}
	}
	for a := range o.clients {
		t.clients[a] = struct{}{}
	}
	for a := range o.fallen {
		t.fallen[a] = struct{}{}
	}
	for p := range o.prefixes {
		t.prefixes[p] = struct{}{}
	}
	if t.Signals == nil {
		t.Signals = map[string]Signals{}
	}
	for kind, s := range o.Signals {
		t.Signals[kind] = t.Signals[kind].plus(s)
	}
}

// put adds n to the count of a key.
func put[K comparable](m *map[K]uint64, key K, n uint64) {
	if *m == nil {
		*m = map[K]uint64{}
	}
	(*m)[key] += n
}
