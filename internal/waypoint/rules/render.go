package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// Render returns the table with its elements in nft's syntax, so that a person can read it and nft can load it.
func Render(o Options, s State) string {
	schema := newSchema(o)
	elements := schema.render(s)
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", table.Name)
	for _, set := range schema.sets {
		renderSet(&b, set, elements[set.Name])
	}
	chains := schema.chains
	for _, c := range markChains(s.Mappings, s.Admissions) {
		chains = append(chains, c.chain(schema.options.Marks))
	}
	for i, c := range chains {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "\tchain %s {\n", c.name)
		if c.comment != "" {
			fmt.Fprintf(&b, "\t\tcomment %q\n", c.comment)
		}
		if c.header != "" {
			fmt.Fprintf(&b, "\t\t%s\n", c.header)
		}
		if c.name == quotaChain {
			c = schema.quota(s.Used)
		}
		for _, r := range c.rules {
			fmt.Fprintf(&b, "\t\t%s\n", r.text)
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

func renderSet(b *strings.Builder, set nft.Set, elements []string) {
	kind := "set"
	if len(set.Data) > 0 {
		kind = "map"
	}
	fmt.Fprintf(b, "\t%s %s {\n\t\t%s\n", kind, set.Name, set.Types())
	if set.Size > 0 {
		fmt.Fprintf(b, "\t\tsize %d\n", set.Size)
	}
	if set.Interval {
		b.WriteString("\t\tflags interval\n")
	}
	if set.Timeout {
		b.WriteString("\t\tflags timeout\n")
	}
	if set.Dynamic {
		b.WriteString("\t\tflags dynamic\n")
	}
	if set.Comment != "" {
		fmt.Fprintf(b, "\t\tcomment %q\n", set.Comment)
	}
	if len(elements) > 0 {
		slices.Sort(elements)
		fmt.Fprintf(b, "\t\telements = {\n\t\t\t%s\n\t\t}\n", strings.Join(elements, ",\n\t\t\t"))
	}
	b.WriteString("\t}\n\n")
}

// render returns the elements of each set, in nft's syntax.
func (s *schema) render(state State) map[string][]string {
	elements := make(map[string][]string)
	add := func(set nft.Set, format string, a ...any) {
		elements[set.Name] = append(elements[set.Name], fmt.Sprintf(format, a...))
	}
	for _, m := range state.Mappings {
		f := s.family(m.Client)
		key := fmt.Sprintf("%v . %d %s", m.Client, m.Port, renderLeft(m.Left))
		add(f.servers, "%s : %v . %d", key, m.Server.Addr(), m.Server.Port())
		add(f.marks, "%s : jump %s", key, markChain{m.Member, wire.Mapped}.name())
	}
	for _, a := range state.Admissions {
		jump, left := markChain{a.Member, a.Kind}.name(), renderLeft(a.Left)
		switch {
		case a.Kind == wire.InBand && s.options.InBand == InBandAuthenticated:
			add(s.inBand.keyed, "%v . %#x %s : jump %s", a.Addr, s.options.Marks.Mark(a.Member, a.Kind), left, jump)
		case a.Kind == wire.InBand:
			add(s.inBand.open, "%v %s : jump %s", a.Addr, left, jump)
		case a.Kind == wire.Converter:
			add(s.converted, "%#x %s : jump %s", s.options.Marks.Mark(a.Member, a.Kind), left, jump)
		default:
			add(s.family(a.Addr).tunnels, "%v %s : jump %s", a.Addr, left, jump)
		}
	}
	for _, r := range state.Forbidden {
		add(s.family(r.First).forbidden, "%s", renderRange(r.First.String(), r.Last.String()))
		if r.First.Is4() {
			add(s.inBand.forbidden, "%s", renderRange(renderWord(r.First), renderWord(r.Last)))
		}
	}
	for _, m := range state.Members {
		add(s.members, "%#x comment %q", uint32(m.ID), m.Name+" "+m.Serial)
	}
	for _, port := range state.ForbiddenPorts {
		add(s.ports, "%d", port)
	}
	if state.Closed {
		add(s.closed, "%#x", s.options.Marks.ours())
	}
	for _, id := range state.Awaited {
		add(s.awaited, "%#x %s", s.options.Marks.Mark(id, wire.Converter), renderLeft(state.Await))
	}
	for _, id := range state.Stopped {
		add(s.stopped, "%#x", s.options.Marks.member(id))
	}
	for _, interfaces := range []struct {
		set   nft.Set
		names []string
	}{{s.tunnelIfs, state.TunnelInterfaces}, {s.four.guarded, state.Guarded4}, {s.six.guarded, state.Guarded6}} {
		for _, name := range interfaces.names {
			add(interfaces.set, "%q", name)
		}
	}
	return elements
}

func renderLeft(left time.Duration) string {
	return fmt.Sprintf("timeout %v", left.Round(time.Second))
}

func renderRange(first, last string) string {
	if first == last {
		return first
	}
	return first + "-" + last
}

func renderWord(a netip.Addr) string { return fmt.Sprintf("%#x", a.AsSlice()) }

// family returns the half of the table for an address's family.
func (s *schema) family(a netip.Addr) family {
	if a.Is6() {
		return s.six
	}
	return s.four
}
