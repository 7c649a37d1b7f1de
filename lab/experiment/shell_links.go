package experiment

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/detour-collective/dcol/lab/scenario"
)

func (sh *shell) showHosts() error {
	w := tabwriter.NewWriter(sh.out, 0, 0, 2, ' ', 0)
	for _, h := range sh.lab.Scenario.Hosts {
		roles := scenario.Words(h.Roles)
		if len(h.NAT) > 0 {
			roles = append(roles, "NAT of "+strings.Join(h.NAT, ", "))
		}
		if m := sh.lab.net.middlebox(h.Name); m != scenario.NoMiddlebox {
			roles = append(roles, string(m))
		}
		host := sh.lab.net.Host(h.Name)
		fmt.Fprintf(w, "%s\t%s\t%v\t%v\n", h.Name, strings.Join(roles, ", "), host.Addr4(), host.Addr6())
	}
	return w.Flush()
}

func (sh *shell) showLinks() error {
	w := tabwriter.NewWriter(sh.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "link\tbetween\trate\tdelay\tjitter\tloss\tqueue\tstate")
	for _, l := range sh.lab.Scenario.Links {
		state := "up"
		shape, down := sh.lab.net.link(l.Name)
		if down {
			state = "down"
		}
		ab, ba := shape.Directions()
		if same(ab, ba) {
			fmt.Fprintf(w, "%s\t%s - %s\t%s\t%s\n", l.Name, l.A, l.B, paramCells(ab), withImpairments(state, ab))
			continue
		}
		fmt.Fprintf(w, "%s\t%s to %s\t%s\t%s\n", l.Name, l.A, l.B, paramCells(ab), withImpairments(state, ab))
		fmt.Fprintf(w, "\t%s to %s\t%s\t%s\n", l.B, l.A, paramCells(ba), withImpairments(state, ba))
	}
	return w.Flush()
}

func withImpairments(state string, p scenario.Params) string {
	if said := p.Impairments.String(); said != "" {
		return state + ", " + said
	}
	return state
}

func same(a, b scenario.Params) bool {
	return paramCells(a) == paramCells(b) && a.Impairments.String() == b.Impairments.String()
}

// paramCells returns a direction's parameters, as they would be written.
func paramCells(p scenario.Params) string {
	cells := []string{"unlimited", "0s", "0s", "0%", "default"}
	if p.Rate != nil {
		cells[0] = p.Rate.String()
	}
	if p.Delay != nil {
		cells[1] = p.Delay.String()
	}
	if p.Jitter != nil {
		cells[2] = p.Jitter.String()
	}
	if p.Loss != nil {
		cells[3] = p.Loss.String()
	}
	if p.Queue != nil {
		cells[4] = p.Queue.String()
	}
	return strings.Join(cells, "\t")
}

// set changes a link.
func (sh *shell) set(args []string) error {
	if len(args) < 3 {
		return errUsage
	}
	link, ok := sh.lab.Scenario.Link(args[0])
	if !ok {
		return fmt.Errorf("there is no link %q", args[0])
	}
	change := scenario.Change{Link: link.Name}
	into, args := &change.Params, args[1:]
	if args[0] == "toward" {
		switch args[1] {
		case link.B:
			into = &change.AtoB
		case link.A:
			into = &change.BtoA
		default:
			return fmt.Errorf("link %s leads to %s and %s, not to %q", link.Name, link.A, link.B, args[1])
		}
		args = args[2:]
	}
	if len(args) == 0 || len(args)%2 != 0 {
		return errUsage
	}
	for i := 0; i < len(args); i += 2 {
		if err := into.Set(args[i], args[i+1]); err != nil {
			return err
		}
	}
	return sh.lab.net.changeLink(change)
}
