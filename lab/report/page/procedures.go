package page

import (
	"slices"
	"strings"
)

// procedures says what is compared, before there are plots of it.
func (b *book) procedures() ([]section, error) {
	type said struct {
		words    string
		networks []string
	}
	names, all := &network{}, map[string][]*said{}
	for _, n := range b.networks {
		for _, part := range n.parts {
			for _, p := range part.Procedures {
				if p.Description == "" {
					continue
				}
				names.procedures = appendNew(names.procedures, p.Name)
				at := slices.IndexFunc(all[p.Name], func(s *said) bool { return s.words == p.Description })
				if at < 0 {
					at = len(all[p.Name])
					all[p.Name] = append(all[p.Name], &said{words: p.Description})
				}
				s := all[p.Name][at]
				s.networks = appendNew(s.networks, n.name)
			}
		}
	}
	if len(names.procedures) == 0 {
		return nil, nil
	}
	names.sortProcedures()
	t := table{Title: "The procedures", Words: 2, Head: []string{"procedure", "what it is"}}
	for _, name := range names.procedures {
		for _, s := range all[name] {
			e := entry{Text: s.words}
			if len(all[name]) > 1 {
				e.Below = []string{"in " + strings.Join(s.networks, ", ")}
			}
			t.Rows = append(t.Rows, []entry{{Text: name}, e})
		}
	}
	return []section{{
		ID: "procedures", Title: "What is compared",
		Text: []string{
			"Between a client and a server there is a direct path, which is the Internet's route, and detours through waypoints, hosts " +
				"that forward for others. With dcol a program's TCP connection becomes one of Multipath TCP (MPTCP), with a subflow on the direct path and " +
				"others on detours, all at the same time. Beside it stands plain TCP, on the direct path or on a detour alone.",
			"Goodput is the program's own bytes over time, without headers and what was sent again.",
		},
		Tables: []table{t.grouped()},
	}}, nil
}
