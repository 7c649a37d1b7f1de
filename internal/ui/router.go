package ui

import (
	"fmt"
	"strings"

	"github.com/detour-collective/dcol/internal/api"
)

// leftWords explains api.BalancedRoute.Left: why the kernel chooses alone.
var leftWords = map[string]string{
	"weights": "by the kernel: weights differ", "resilient": "by the kernel: resilient group", "radix": "by the kernel: more than the radix",
	"too_many": "by the kernel: too many", "single": "one works",
}

// router describes the router role.
func (p *printer) router(r *api.Router) {
	p.linef("")
	p.linef("Router (%s, radix %d): %d packets by their ports, %d hashed", r.Cipher, r.Radix, r.Decoded, r.Hashed)
	var rows [][]string
	for _, route := range r.Routes {
		var hops []string
		for i, hop := range route.NextHops {
			text := fmt.Sprintf("%d: %s", i, hop.Interface)
			if hop.Gateway.IsValid() {
				text = fmt.Sprintf("%d: %v %s", i, hop.Gateway, hop.Interface)
			}
			if hop.Dead {
				text = fmt.Sprintf("down: %v %s", hop.Gateway, hop.Interface)
			}
			hops = append(hops, text)
		}
		how := "by ports"
		if route.Left != "" {
			how = leftWords[route.Left]
		}
		rows = append(rows, []string{route.Prefix.String(), how, strings.Join(hops, ", ")})
	}
	if len(rows) == 0 {
		p.linef("No route has several next hops.")
		return
	}
	p.table("ROUTE|CHOSEN|NEXT HOPS", rows)
}
