package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
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
		Long: `Prints the connections to a server with the reason for each path, those that ended lately,
and what a new connection would take: each detour that leads there, what is known of it,
and why it would be taken or not.

DESTINATION is an address or a name, with or without a port: 192.0.2.80, [2001:db8::80]:443,
example.org:443. Without a port, connections to all ports are shown. CONNECTION is the token of
a live connection, as dcol status -d shows it: 7cc023a1.`,
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
				answer.Closed = []api.ClosedConnection{}
				answer.Connections = slices.DeleteFunc(answer.Connections, func(c api.Connection) bool { return c.Token != only })
			}
			answers = append(answers, answer)
		}
		for i, answer := range relevant(answers) {
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
	servers, err = destinations(ctx, text)
	if err != nil && tokenForm.MatchString(text) {
		err = fmt.Errorf("no live connection has the token %s (dcol status -d shows them), and %w", text, err)
	}
	return "", servers, err
}

// destinations returns the addresses that text names. Their port is 0 if text has none.
func destinations(ctx context.Context, text string) ([]netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(a.Unmap(), 0)}, nil
	}
	host, port := text, 0
	if h, p, err := net.SplitHostPort(text); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%q is not a port (1 to 65535)", p)
		}
		host, port = h, int(n)
	}
	addrs, err := addressesOf(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("%q is no address, and no name that can be resolved: %w", host, err)
	}
	var list []netip.AddrPort
	for _, a := range addrs {
		list = append(list, netip.AddrPortFrom(a.Unmap(), uint16(port)))
	}
	return list, nil
}

// relevant returns the answers about servers with connections, or the first if there are none.
func relevant(answers []api.Why) (list []api.Why) {
	for _, a := range answers {
		if len(a.Connections)+len(a.Closed) > 0 {
			list = append(list, a)
		}
	}
	if len(list) == 0 {
		return answers[:min(len(answers), 1)]
	}
	return list
}
