package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/ui"
)

func socketFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("socket", config.DefaultSocket, "the agent's `socket`")
}

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show connections with their subflows, and waypoints with their state",
		Long: `Shows the waypoints, with the kinds of detours that are ready through each. Then it shows the
connections with their subflows, which are the paths that a connection uses, and why it has
each detour. On a waypoint it also shows what the waypoint does for others.

Without -d, it shows the ten connections with the highest rates.`,
		Args: cli.Exactly(0),
	}
	socket := socketFlag(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON ("+api.StatusSchema+")")
	details := cmd.Flags().BoolP("details", "d", false, "show all connections, with all that is known of each path")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		status, err := dial(*socket).Status(cmd.Context())
		if err != nil {
			return err
		}
		nameHolders(&status)
		if *asJSON {
			return printJSON(status)
		}
		show := ui.Status
		if *details {
			show = ui.Details
		}
		return show(os.Stdout, status, time.Now())
	}
	return cmd
}

// nameHolders finds the programs that have the ports for which roles wait. This command runs as root and may see
// processes that the agent may not see.
func nameHolders(s *api.Status) {
	for i := range s.TakenPorts {
		t := &s.TakenPorts[i]
		told := slices.Index(s.Problems, t.Problem())
		holders, err := netstate.PortHolders(t.Network, t.Port)
		if told < 0 || err != nil || len(holders) == 0 {
			continue
		}
		t.Holder = &api.PortHolder{User: holders[0].User, Program: holders[0].Program, PID: holders[0].PID}
		s.Problems[told] = t.Problem()
	}
}

func mapCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "map SERVER:PORT --via WAYPOINT",
		Short: "Request a port at a waypoint that leads to a server, and print it",
		Long: `Requests a mapping from a waypoint and prints the address and port at the waypoint that lead
to the server. Any TCP program on this host can connect there; its traffic uses only the
detour, with plain TCP. The mapping works for this host only. It expires if it is not
requested again.`,
		Example: "  curl --connect-to ::$(dcol map 203.0.113.5:443 --via bob) https://example.org/",
		Args:    cli.Exactly(1),
	}
	socket := socketFlag(cmd)
	via := cmd.Flags().String("via", "", "the `waypoint`'s name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		server, err := netip.ParseAddrPort(args[0])
		if err != nil {
			return fmt.Errorf("%q is not an IP address and port, such as 203.0.113.5:443 or [2001:db8::5]:443", args[0])
		}
		if server.Port() == 0 || server.Addr().Zone() != "" {
			return fmt.Errorf("%v cannot be a server: its port must be 1 to 65535, and its address must have no zone", server)
		}
		if *via == "" {
			return errors.New("name the waypoint with --via; `dcol status` lists them")
		}
		if err := collective.CheckName(*via); err != nil {
			return fmt.Errorf("--via: %w", err)
		}
		var answer api.MapAnswer
		patiently(always("the answer of "+*via), func() {
			answer, err = api.Dial(*socket).Map(cmd.Context(), api.MapRequest{Server: server, Waypoint: *via})
		})
		if err != nil {
			return err
		}
		_, err = fmt.Println(answer.Address)
		return err
	}
	return cmd
}

func printJSON(v any) error {
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
