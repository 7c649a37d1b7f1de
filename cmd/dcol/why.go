package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/ui"
)

func whyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "why DESTINATION|CONNECTION",
		Short: "Explain which paths connections to a server take, and why",
		Long: `Prints the connections to a server with the reason for each path and the paths that they left,
those that ended lately, and what a new connection would take: each path that leads there, what
is known of it, why it would be taken or not, and what would change that.

DESTINATION is an address or a name, with or without a port, or a URL: 192.0.2.80,
[2001:db8::80]:443, example.org:443, https://example.org/. Without a port, connections to all
ports are shown. CONNECTION is the token of a live connection, as dcol status -d shows it:
7cc023a1.`,
		Example: "  dcol why example.org",
		Args:    cli.Exactly(1),
	}
	socket := cmd.Flags().String("socket", config.DefaultSocket, "the agent's `socket`")
	asJSON := cmd.Flags().Bool("json", false, "print JSON: "+api.WhySchema+", a line for each address")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		only, servers, err := asked(cmd.Context(), *socket, args[0])
		if err != nil {
			return err
		}
		var answers []api.Why
		for _, server := range servers {
			answer, err := dial(*socket).Why(cmd.Context(), api.WhyRequest{Server: server})
			if err != nil {
				return err
			}
			if only != "" {
				answer.KeepOnly(only)
			}
			answers = append(answers, answer)
		}
		for i, answer := range api.Relevant(answers) {
			if *asJSON {
				err = printJSON(answer)
			} else {
				if i > 0 {
					fmt.Println()
				}
				err = ui.Why(os.Stdout, answer, time.Now())
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

var tokenForm = regexp.MustCompile(`^[0-9a-f]{8}$`)

// asked returns the servers that text names. If text is the token of a live connection, it returns the
// token and that connection's server.
func asked(ctx context.Context, socket, text string) (token string, servers []netip.AddrPort, err error) {
	if tokenForm.MatchString(text) {
		s, err := dial(socket).Status(ctx)
		if err != nil {
			return "", nil, err
		}
		if s.Client != nil {
			is := func(c api.Connection) bool { return c.Token == text }
			if i := slices.IndexFunc(s.Client.Connections, is); i >= 0 {
				return text, []netip.AddrPort{s.Client.Connections[i].Destination()}, nil
			}
		}
	}
	var known []api.Waypoint
	servers, err = api.Destinations(text, func(name string) ([]netip.Addr, error) {
		s, err := dial(socket).Status(ctx) // first: without an agent, the lookup's error would mislead
		if err != nil {
			return nil, err
		}
		if s.Client != nil {
			known = s.Client.Waypoints
		}
		return addressesOf(ctx, "ip", name)
	})
	switch {
	case err == nil:
	case slices.ContainsFunc(known, func(w api.Waypoint) bool { return w.Name == text }):
		err = fmt.Errorf("%s is a waypoint, and not a server that can be reached by this name; dcol status explains waypoints", text)
	case tokenForm.MatchString(text):
		err = fmt.Errorf("no live connection has the token %s (dcol status -d shows them), and %w", text, err)
	}
	return "", servers, err
}
