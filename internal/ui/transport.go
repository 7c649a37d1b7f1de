package ui

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/printable"
)

// Congestion writes which congestion controls there are, and which connections get which.
func Congestion(w io.Writer, t api.Transport) error {
	p := &printer{w: w}
	p.linef("available: %s", printable.Text(strings.Join(t.Available, ", ")))
	if t.Problem != "" {
		p.linef("PROBLEM: %s", t.Problem)
	}
	for _, c := range t.Congestion {
		name := c.Name
		if c.Use != c.Name {
			name += " (" + c.Use + ")"
		}
		refused := ""
		if c.Refused > 0 {
			refused = fmt.Sprintf(", refused by the kernel for %d", c.Refused)
		}
		p.linef("%s: %s; set for %d%s", name, covered(c), c.Set, refused)
	}
	p.linef("%s: all other connections", printable.Text(t.Default))
	return p.err
}

// covered describes the connections of a table.
func covered(c api.Congestion) string {
	var parts []string
	if c.Cgroup != "" {
		parts = append(parts, "of programs in "+c.Cgroup)
	}
	if len(c.Ports) > 0 {
		var list []string
		for _, port := range c.Ports {
			list = append(list, strconv.Itoa(port))
		}
		parts = append(parts, "to port "+strings.Join(list, ", "))
	}
	if len(c.Networks) > 0 {
		parts = append(parts, "with "+strings.Join(c.Networks, ", "))
	}
	if len(parts) == 0 {
		return "all connections"
	}
	return "connections " + strings.Join(parts, ", ")
}
