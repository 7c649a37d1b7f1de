package compare

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// Sight is a quote of one hop, compared with the probe.
type Sight struct {
	Hop  int
	From netip.Addr
	*Comparison
}

// look is a Sight with the fields that its quote shows.
type look struct {
	Sight
	seen *View
}

// Finding is a change on the path, behind hop After and no further than hop By.
type Finding struct {
	Change
	// After is the last hop that quoted the field with its old value; 0 is the sender. By is the first that
	// quoted the new one.
	After, By         int
	AfterAddr, ByAddr netip.Addr
	// Padded is set if a removed option was overwritten by padding.
	Padded bool
	// Consequences are derived fields, such as checksums, that changed in the same interval.
	Consequences []Field
	// Unexplained is set if the field is a derived one and no quote shows the change from which it follows.
	Unexplained bool
	// Reverted is set if the changed field is a checksum that does not fit the quote, which is whole. The packet
	// was something else there, and the quote was changed back.
	Reverted bool
	// Quoting is the number of hops that quoted the new value.
	Quoting int
}

// Doubt is a quote that later hops contradict: the router quotes wrongly, or reverts something.
type Doubt struct {
	Hop  int
	From netip.Addr
	Change
}

// seen is a field's state at a hop.
type seen struct {
	hop      int
	from     netip.Addr
	value    Value
	padded   bool
	reverted bool
}

// Locate finds the changes on a path, from the quotes of its hops. The order of the sights does not matter.
func Locate(sent *Sent, sights []Sight) (findings []Finding, doubts []Doubt) {
	was := sent.View()
	var looks []look
	for _, s := range sights {
		looks = append(looks, look{s, s.view()})
	}
	slices.SortStableFunc(looks, func(a, b look) int { return a.Hop - b.Hop })
	var derived []Finding
	for _, f := range fieldsOf(was, looks) {
		found, odd := locateField(was, f, looks)
		doubts = append(doubts, odd...)
		if f.Derived() {
			derived = append(derived, found...)
		} else {
			findings = append(findings, found...)
		}
	}
	narrow(was, findings, looks)
	findings = attach(findings, derived)
	slices.SortStableFunc(findings, func(a, b Finding) int { return a.By - b.By })
	return findings, doubts
}

// fieldsOf lists all fields that were sent or quoted, in the order of a packet.
func fieldsOf(sent *View, looks []look) []Field {
	fields := slices.Clone(sent.order)
	for _, s := range looks {
		for _, c := range s.Changes {
			if !slices.Contains(fields, c.Field) {
				fields = append(fields, c.Field)
			}
		}
	}
	return fields
}

func locateField(sent *View, f Field, looks []look) (found []Finding, odd []Doubt) {
	was, known := sent.Value(f)
	if !known {
		return nil, nil
	}
	series := []seen{{value: was}}
	for _, s := range looks {
		value, visible := s.valueOf(f, was)
		if !visible {
			continue
		}
		at := seen{s.Hop, s.From, value, s.Padded, s.Mismatch}
		if last := len(series) - 1; last > 0 && series[last].hop == s.Hop {
			if !series[last].value.equal(value) {
				// One hop quotes two values, so its quotes are no evidence for this field.
				odd = append(odd, Doubt{s.Hop, s.From, Change{f, was, value}})
				series = series[:last]
			}
			continue
		}
		series = append(series, at)
	}
	series, contradicted := credible(series)
	for _, s := range contradicted {
		odd = append(odd, Doubt{s.hop, s.from, Change{f, was, s.value}})
	}
	for i := 1; i < len(series); i++ {
		from, to := series[i-1], series[i]
		if from.value.equal(to.value) {
			continue
		}
		quoting := 0
		for _, s := range series[i:] {
			if !s.value.equal(to.value) {
				break
			}
			quoting++
		}
		c := Change{f, from.value, to.value}
		found = append(found, Finding{
			Change: c, After: from.hop, By: to.hop, AfterAddr: from.from, ByAddr: to.from,
			Padded: c.Kind() == Removed && to.padded, Reverted: f.checksum() && to.reverted, Quoting: quoting,
		})
	}
	return found, odd
}

// valueOf returns a field's value in a quote, in a form that can be compared with other hops' values (see comparable).
// A payload that is cut counts if its visible part differs.
func (s look) valueOf(f Field, was Value) (Value, bool) {
	for _, c := range s.Changes {
		if c.Field == f {
			return c.comparable(), true
		}
	}
	_, visible := s.seen.Value(f)
	return was, visible
}

// credible leaves out single hops whose value neither the hop before nor the one behind has, if these two agree.
func credible(series []seen) (kept, contradicted []seen) {
	kept = append(kept, series[0])
	for i := 1; i < len(series); i++ {
		last := kept[len(kept)-1]
		if i+1 < len(series) && !series[i].value.equal(last.value) && series[i+1].value.equal(last.value) {
			contradicted = append(contradicted, series[i])
			continue
		}
		kept = append(kept, series[i])
	}
	return kept, contradicted
}

// narrow uses the packet's length, which every quote has, to locate options and payloads that were removed or
// added: where the length changes in one step, they all changed there.
func narrow(sent *View, findings []Finding, looks []look) {
	was, _ := sent.Value(Length)
	before := slices.Clone(findings)
	for i := range findings {
		after, by := before[i].After, before[i].By
		sum, known := growth(before, after, by)
		if !known || !findings[i].sized() {
			continue
		}
		lengths := []seen{{hop: 0, value: was}}
		for _, s := range looks {
			if v, ok := s.seen.Value(Length); ok && s.Hop >= after && s.Hop <= by {
				lengths = append(lengths, seen{hop: s.Hop, from: s.From, value: v})
			}
		}
		if after > 0 && len(lengths) > 1 {
			lengths = lengths[1:]
		}
		step, steps := 0, 0
		for j := 1; j < len(lengths); j++ {
			if !lengths[j].value.equal(lengths[j-1].value) {
				step, steps = j, steps+1
			}
		}
		if steps != 1 || diff(lengths[step-1].value, lengths[step].value) != sum {
			continue
		}
		if at := lengths[step-1]; at.hop > findings[i].After {
			findings[i].After, findings[i].AfterAddr = at.hop, at.from
		}
		if at := lengths[step]; at.hop < findings[i].By {
			findings[i].By, findings[i].ByAddr = at.hop, at.from
		}
	}
}

// sized reports whether the change alone may have changed the packet's length.
func (f Finding) sized() bool {
	return (f.Field.IsOption() || f.Field == Payload) && f.Sent.size() != f.Seen.size()
}

// growth returns the number of bytes by which the findings of an interval change the packet's length. It is not known
// if some findings remove bytes and others add them.
func growth(findings []Finding, after, by int) (sum int, known bool) {
	options, payload, up, down := 0, 0, false, false
	for _, f := range findings {
		if !f.sized() || f.After != after || f.By != by {
			if f.sized() && f.After < by && after < f.By {
				return 0, false // it overlaps: either may have changed the length
			}
			continue
		}
		d := f.Seen.size() - f.Sent.size()
		up, down = up || d > 0, down || d < 0
		if f.Field == Payload {
			payload += d
		} else {
			options += d
		}
	}
	// Options are padded to words.
	switch {
	case options > 0:
		options = (options + 3) / 4 * 4
	case options < 0:
		options = -((-options + 3) / 4 * 4)
	}
	return options + payload, up != down
}

func diff(from, to Value) int {
	var a, b int
	for _, c := range from.Raw {
		a = a*10 + int(c-'0')
	}
	for _, c := range to.Raw {
		b = b*10 + int(c-'0')
	}
	return b - a
}

// attach adds each derived change to the findings that explain it. Unexplained ones become findings.
func attach(findings, derived []Finding) []Finding {
	var alone []Finding
	for _, d := range derived {
		explained := false
		for i := range findings {
			f := &findings[i]
			if f.After < d.By && d.After < f.By && explains(f.Field, d.Field) {
				explained = true
				f.Consequences = append(f.Consequences, d.Field)
			}
		}
		if !explained {
			alone = append(alone, d)
		}
	}
	return append(findings, unexplained(alone)...)
}

// unexplained keeps the first of several derived changes in one place, and makes the others its consequences. The first
// is the most telling one: a length.
func unexplained(alone []Finding) (findings []Finding) {
	for _, d := range alone {
		i := slices.IndexFunc(findings, func(f Finding) bool { return f.After < d.By && d.After < f.By })
		if i < 0 {
			d.Unexplained = true
			findings = append(findings, d)
		} else {
			findings[i].Consequences = append(findings[i].Consequences, d.Field)
		}
	}
	return findings
}

// explains reports whether a change of a field may change a derived one.
func explains(f, derived Field) bool {
	switch derived {
	case Length, Offset, UDPLength:
		return f.IsOption() || f == Payload || f == IPOptions || f == Protocol
	}
	// Of the IP header, transport checksums cover only the addresses and the protocol.
	switch f {
	case DSCP, ECN, ID, Fragment, FlowLabel, IPOptions:
		return false
	}
	return true
}

// comparable returns the new value in a form that is equal for probes that were changed in the same way. A sequence
// number becomes the distance by which it was moved. A field that differs in each packet becomes "changed".
func (c Change) comparable() Value {
	v := c.Seen
	switch {
	case c.Field == ID || c.Field.checksum():
		v.Raw = "changed"
	case c.Field == Seq:
		v.Raw = fmt.Sprintf("moved by %d", c.Moved())
	}
	return v
}

// Moved returns the number of bytes by which a sequence or acknowledgement number was moved.
func (c Change) Moved() int32 {
	was, errWas := strconv.ParseUint(c.Sent.Raw, 10, 32)
	is, errIs := strconv.ParseUint(c.Seen.Text, 10, 32)
	if errWas != nil || errIs != nil {
		return 0
	}
	return int32(uint32(is) - uint32(was))
}

// Shrunk reports whether a length became smaller, or a payload or an option shorter.
func (c Change) Shrunk() bool {
	if c.Field == Length {
		return diff(c.Sent, c.Seen) < 0
	}
	return c.Seen.size() < c.Sent.size()
}
