package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/ui"
)

func ccCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cc",
		Short: "Show or change which congestion control this host's connections get",
		Long: `Tables [[congestion]] of the agent's configuration choose the congestion control of this
host's connections, by cgroup, server's port and network: one of the kernel's, or one of
those of dcol, which couple the subflows of an MPTCP connection (lia, olia, balia, wvegas).`,
	}
	socket := cmd.PersistentFlags().String("socket", config.DefaultSocket, "the agent's `socket`")
	list := &cobra.Command{
		Use:   "list",
		Short: "List the congestion controls, and the connections that get them",
		Long: `Lists the congestion controls that the kernel has, those of dcol included, and which
connections get which.`,
		Args: cli.Exactly(0),
	}
	asJSON := list.Flags().Bool("json", false, "print JSON ("+api.TransportSchema+")")
	list.RunE = func(cmd *cobra.Command, _ []string) error {
		t, err := dial(*socket).Transport(cmd.Context())
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(t)
		}
		return ui.Congestion(os.Stdout, t)
	}
	cmd.AddCommand(list, ccUse(socket))
	return cmd
}

func ccUse(socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "use NAME",
		Short: "Change the congestion control of new connections until the agent ends",
		Long: `Changes the congestion control of connections that begin from now on: to one of the kernel's,
or to lia, olia, balia or wvegas. Without flags, this is for all connections of this host.
With flags, it is for programs in a cgroup, for servers' ports (this host's own ports for
connections that others open), or for peers in networks. A port and a network given together
must both match.

The command takes precedence over the tables [[congestion]] of the configuration, and is in
effect until the agent ends. Existing connections keep their congestion control.`,
		Example: `  dcol cc use lia
  dcol cc use bbr --cgroup /sys/fs/cgroup/system.slice/backup.service
  dcol cc use olia --port 443 --network 203.0.113.0/24
  dcol cc use --reset`,
		Args: cobra.MaximumNArgs(1),
	}
	var r api.CongestionRequest
	cmd.Flags().StringVar(&r.Cgroup, "cgroup", "", "only for programs in this cgroup's `folder`")
	cmd.Flags().IntSliceVar(&r.Ports, "port", nil, "only to these servers' `ports`")
	cmd.Flags().StringSliceVar(&r.Networks, "network", nil, "only with peers in these `networks`")
	cmd.Flags().BoolVar(&r.Reset, "reset", false, "return to the configuration")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case r.Reset && (len(args) > 0 || r.Cgroup != "" || len(r.Ports) > 0 || len(r.Networks) > 0):
			return errors.New("--reset takes no congestion control and no other flag")
		case !r.Reset && len(args) == 0:
			return errors.New("NAME is missing, such as lia; dcol cc list shows those of the kernel")
		case !r.Reset:
			r.Use = args[0]
		}
		now, err := dial(*socket).UseCongestion(cmd.Context(), r)
		if err != nil {
			return err
		}
		return ui.Congestion(os.Stdout, now)
	}
	return cmd
}
