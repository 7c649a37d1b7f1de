package rules

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/netstate/nft"
)

// Render writes the table with its elements in the words of nft, so that a person can read it and
// nft can load it.
func Render(l Limits, s State) string {
	schema := newSchema(l)
	elements := schema.render(s)
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", table.Name)
	for _, set := range schema.sets {
		renderSet(&b, set, elements[set.Name])
	}
	for i, c := range schema.chains {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "\tchain %s {\n", c.name)
		if c.header != "" {
			fmt.Fprintf(&b, "\t\t%s\n", c.header)
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
	kind, types := "set", typeNames(set.Key)
	if len(set.Data) > 0 {
		kind, types = "map", types+" : "+typeNames(set.Data)
	}
	fmt.Fprintf(b, "\t%s %s {\n\t\ttype %s\n", kind, set.Name, types)
	if set.Size > 0 {
		fmt.Fprintf(b, "\t\tsize %d\n", set.Size)
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

func typeNames(types []nft.Type) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = t.String()
	}
	return strings.Join(names, " . ")
}

// render writes the elements of each set.
func (s *schema) render(state State) map[string][]string {
	elements := make(map[string][]string)
	for _, m := range state.Mappings {
		f := s.family(m)
		key := fmt.Sprintf("%v . %d timeout %v", m.Client, m.Port, m.Left.Round(time.Second))
		elements[f.servers.Name] = append(elements[f.servers.Name], fmt.Sprintf("%s : %v . %d", key, m.Server.Addr(), m.Server.Port()))
		elements[f.marks.Name] = append(elements[f.marks.Name], fmt.Sprintf("%s : %#x", key, m.Member.Mark()))
	}
	for _, m := range state.Members {
		elements[s.members.Name] = append(elements[s.members.Name], fmt.Sprintf("%#x comment %q", m.ID.Mark(), m.Name+" "+m.Serial))
	}
	for _, name := range state.Guarded4 {
		elements[s.four.guarded.Name] = append(elements[s.four.guarded.Name], fmt.Sprintf("%q", name))
	}
	for _, name := range state.Guarded6 {
		elements[s.six.guarded.Name] = append(elements[s.six.guarded.Name], fmt.Sprintf("%q", name))
	}
	return elements
}

// family is the half of the table that a mapping is in.
func (s *schema) family(m Mapping) family {
	if m.Client.Is6() {
		return s.six
	}
	return s.four
}
