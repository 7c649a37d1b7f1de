package bench

import (
	"fmt"
	"slices"
	"strings"
)

// figures returns the figures of each property: every relay's, compared with forwarding, and the engine's, compared with
// HAProxy's. The latter has a target.
func (c *converting) figures() (found []Measurement) {
	found = append(found, c.transferFigures()...)
	for _, size := range c.plan.sizes {
		found = append(found, c.exchangeFigures(size)...)
	}
	found = append(found, c.compare("round trip of 100 bytes", "µs", c.plain(), func(r *relayed) []float64 { return r.trips })...)
	found = append(found, c.delayFigures()...)
	found = append(found, c.firstFigures()...)
	found = append(found, c.idleFigures()...)
	found[0].Note = strings.Join(append(c.allNotes(), convertNote), "; ")
	return found
}

// allNotes returns the notes about the run, and one for each relay that stood still.
func (c *converting) allNotes() []string {
	notes := slices.Clone(c.notes)
	for _, r := range c.relays {
		if r.stood > 0 {
			notes = append(notes, fmt.Sprintf("%s beside %d idle pairs, %d times of %d: %v", r.name, r.allPairs(), r.stood, r.stood+len(r.idle), errStandsStill))
		}
	}
	return notes
}

const convertNote = "one connection at a time, the relays in turns; MPTCP towards the client unless TCP is named, TCP towards the server; " +
	"all share this machine's processors with client and server; processor time is that of the relay's process, " +
	"in which the kernel also does much of the work for both connections' packets; figures in × are the median of the ratios of each turn"

func (c *converting) transferFigures() (found []Measurement) {
	for _, d := range directions {
		found = append(found, c.goodputs("goodput "+string(d), func(r *relayed) []relayTransfer { return r.fast[d] })...)
		least := map[direction]float64{down: 1.3, up: 1}[d]
		found = append(found, c.besideHAProxy("goodput "+string(d), func(r *relayed) []float64 {
			return each(r.fast[d], relayTransfer.goodput)
		}, atLeast(least))...)
	}
	for _, d := range directions {
		what := "processor time a GB " + string(d)
		perGB := func(r *relayed) []float64 { return each(r.fast[d], relayTransfer.perGB) }
		found = append(found, c.compare(what, "s/GB", nil, perGB)...)
		found = append(found, c.besideHAProxy(what, perGB, atMost(0.7))...)
	}
	for _, d := range directions {
		limited := func(r *relayed) []float64 { return each(r.limited[d], relayTransfer.goodput) }
		what := "at 1 Gbit/s, goodput " + string(d)
		found = append(found, c.compare(what, "Mbit/s", c.plain(), limited)...)
		found = append(found, c.engineBeside(what, c.plain(), limited, atLeast(0.97))...)
	}
	for _, mss := range c.plan.mss {
		what := fmt.Sprintf("goodput down with an MSS of %d", mss)
		found = append(found, c.goodputs(what, func(r *relayed) []relayTransfer { return r.byMSS[mss] })...)
	}
	return found
}

// goodputs returns each relay's goodput, and notes in how many of its transfers MPTCP sent data again.
func (c *converting) goodputs(what string, of func(*relayed) []relayTransfer) []Measurement {
	found := c.compare(what, "Mbit/s", c.plain(), func(r *relayed) []float64 { return each(of(r), relayTransfer.goodput) })
	for _, r := range c.relays {
		repeating := 0
		for _, t := range of(r) {
			repeating += t.repeating
		}
		if repeating > 0 {
			i := slices.IndexFunc(found, func(m Measurement) bool { return m.Name == rowName(what, r.name) })
			found[i].Note = fmt.Sprintf("MPTCP waited for an acknowledgement and sent data again in %d of %d transfers", repeating, c.plan.transfers*len(of(r)))
		}
	}
	return found
}

// delayFigures returns the time that data spends in a relay, beyond that of forwarding. It is half of what the relay adds
// to a round trip.
func (c *converting) delayFigures() (found []Measurement) {
	for _, r := range c.relays {
		if r.command == nil || len(r.trips) == 0 {
			continue
		}
		m := of(rowName("delay of data in the relay", r.name), "µs", pairs(r.trips, c.plain().trips, func(a, b float64) float64 { return (a - b) / 2 }))
		if r.name == engineRelay {
			m.Note = "published in 2014, beyond a router's: 11 µs in the kernel (MPTCP to TCP), 24 µs by read and write"
		}
		found = append(found, m)
	}
	return found
}

func (c *converting) exchangeFigures(size int) (found []Measurement) {
	what := fmt.Sprintf("a connection of %d kB", size/1000)
	found = c.compare("connections a second, "+what, "/s", c.plain(), func(r *relayed) []float64 {
		return each(r.exchanges[size], exchanged.rate)
	})
	spent := func(r *relayed) []float64 { return each(r.exchanges[size], exchanged.each) }
	found = append(found, c.compare("processor time of "+what, "µs", nil, spent)...)
	found = append(found, c.besideHAProxy("processor time of "+what, spent, atMost(1))...)
	if other := c.otherMultipath(); other != nil && c.named(convertRelay) != nil {
		found = append(found, c.ratio("processor time of "+what, c.named(convertRelay), other, spent, atMost(1)))
	}
	return found
}

// firstFigures returns how long new connections take through a relay. The baseline is a connection to the server itself.
func (c *converting) firstFigures() []Measurement {
	what := fmt.Sprintf("connect to first byte, links of %v", c.plan.delay)
	found := c.compare(what, "ms", c.plain(), func(r *relayed) []float64 { return r.first })
	beyond := func(name string, first []float64) {
		if len(first) == 0 {
			return
		}
		toRelay := 2 * float64(c.plan.delay.Milliseconds())
		trips := pairs(first, c.plain().first, func(a, b float64) float64 { return (a - b) / toRelay })
		m := of(rowName(what+", beyond forwarding", name), "round trips", trips)
		m.Note = "round trips between client and relay"
		// The emulated links and the machine's timers add some milliseconds.
		const most, tolerance = 1, 0.1
		found = append(found, m.target("<= 1", m.Value <= most+tolerance))
	}
	beyond(engineRelay, c.named(engineRelay).first)
	if r := c.named(convertRelay); r != nil {
		beyond(convertRelay, r.first)
		beyond(convertRelay+", client waits for its answer", r.waiting)
	}
	return found
}

func (c *converting) idleFigures() (found []Measurement) {
	const most = 1000
	for _, r := range c.relays {
		if len(r.idle) == 0 {
			continue
		}
		m := of(rowName("user memory of an idle pair", r.name), "bytes", r.idle)
		m.Note = fmt.Sprintf("with %d pairs", r.allPairs())
		switch {
		case r.allPairs() < c.plan.idle:
			m.Note += fmt.Sprintf(": the limit of open files allows no more (%d; ulimit -Hn)", c.descriptors)
		case len(r.pairs) > 1:
			m.Note += fmt.Sprintf(" in %d processes, because of the limit of open files (%d; ulimit -Hn)", len(r.pairs), c.descriptors)
		}
		if r.name == engineRelay {
			m = m.target("<= 1 kB", m.Value <= most)
		}
		found = append(found, m)
		if len(r.beside) == 0 {
			continue
		}
		b := of(rowName("goodput down beside idle pairs, of that without", r.name), "×", r.beside)
		b.Note = m.Note
		if r.name == engineRelay {
			b = b.target(">= 0.9", b.Value >= leastBeside)
		}
		found = append(found, b)
	}
	return found
}

// leastBeside is the target: the share of its goodput that a connection must keep beside idle ones.
const leastBeside = 0.9

// compare returns a figure for each relay that has values. The baseline is the relay beside, unless that is nil.
func (c *converting) compare(what, unit string, beside *relayed, values func(*relayed) []float64) (found []Measurement) {
	for _, r := range c.relays {
		v := values(r)
		if len(v) == 0 || beside == nil && r.command == nil {
			continue
		}
		m := of(rowName(what, r.name), unit, v)
		if beside != nil && r != beside {
			m = m.against(of("", "", values(beside)).Value)
		}
		found = append(found, m)
	}
	return found
}

// besideHAProxy returns the ratio of the engine's figure to HAProxy's, if there is a HAProxy with MPTCP.
func (c *converting) besideHAProxy(what string, values func(*relayed) []float64, t ratioTarget) []Measurement {
	if other := c.otherMultipath(); other != nil {
		return c.engineBeside(what, other, values, t)
	}
	return nil
}

// otherMultipath returns the HAProxy with MPTCP, or nil if there is none.
func (c *converting) otherMultipath() *relayed {
	for _, r := range c.relays {
		if r.multipath && strings.HasPrefix(r.name, "HAProxy") {
			return r
		}
	}
	return nil
}

// engineBeside returns the ratio of the engine's figures to those of another relay, turn by turn.
func (c *converting) engineBeside(what string, other *relayed, values func(*relayed) []float64, t ratioTarget) []Measurement {
	return []Measurement{c.ratio(what, c.named(engineRelay), other, values, t)}
}

func (c *converting) ratio(what string, a, b *relayed, values func(*relayed) []float64, t ratioTarget) Measurement {
	ratios := pairs(values(a), values(b), func(a, b float64) float64 { return a / b })
	m := of(rowName(what, a.name+" / "+b.name), "×", ratios)
	return m.target(t.text, t.met(m.Value))
}

func rowName(what, relay string) string { return "convert: " + what + ", " + relay }

func (c *converting) plain() *relayed { return c.named(forwarded) }

func (c *converting) named(name string) *relayed {
	for _, r := range c.relays {
		if r.name == name {
			return r
		}
	}
	return nil
}

// ratioTarget is a target for a ratio.
type ratioTarget struct {
	text string
	met  func(float64) bool
}

func atLeast(least float64) ratioTarget {
	return ratioTarget{fmt.Sprintf(">= %v", least), func(v float64) bool { return v >= least }}
}

func atMost(most float64) ratioTarget {
	return ratioTarget{fmt.Sprintf("<= %v", most), func(v float64) bool { return v <= most }}
}

func each[T any](all []T, value func(T) float64) (values []float64) {
	for _, one := range all {
		values = append(values, value(one))
	}
	return values
}

// pairs combines the values that were measured in the same turn.
func pairs(a, b []float64, combine func(a, b float64) float64) (values []float64) {
	for i := range min(len(a), len(b)) {
		values = append(values, combine(a[i], b[i]))
	}
	return values
}
