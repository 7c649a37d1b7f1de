package web

import (
	"context"
	"net"
	"net/netip"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/ui"
)

// whyRequest asks which paths connections to a server take, and why, as `dcol why` does.
type whyRequest struct {
	Destination string `json:"destination"` // an address or a name, with or without a port
	// Token is that of the live connection to explain. It is empty for all connections to the destination.
	Token string `json:"token"`
}

// explanation is an api.Why with the sentences of `dcol why` about the candidates.
type explanation struct {
	api.Why
	Bottlenecks []string `json:"bottlenecks"`
	Claims      []string `json:"claims"`
}

// explains returns a function that asks the agent for explanations, one for each address of the destination that has
// connections.
func explains(agent Agent) func(context.Context, whyRequest) ([]explanation, error) {
	return func(ctx context.Context, r whyRequest) ([]explanation, error) {
		servers, err := api.Destinations(r.Destination, func(name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		})
		if err != nil {
			return nil, err
		}
		var answers []api.Why
		for _, server := range servers {
			w, err := agent.Why(ctx, api.WhyRequest{Server: server})
			if err != nil {
				return nil, err
			}
			w.KeepOnly(r.Token)
			answers = append(answers, w)
		}
		var list []explanation
		for _, w := range api.Relevant(answers) {
			list = append(list, explanation{w, ui.Bottlenecks(w.Candidates), ui.Claims(w.Candidates)})
		}
		return list, nil
	}
}
