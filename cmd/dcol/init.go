package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/setup"
)

func initCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init COLLECTIVE [--name MEMBER] [--address ADDRESS]...",
		Short: "Make a collective, with this host as its coordinator and first member",
		Long: `Makes a collective on this host: its keys, the coordinator that others join by, and the
first member, which is a client and a waypoint. Starts the agent, and says what works.
Others join with a line of dcol invite.`,
		Example: "  dcol init friends",
		Args:    cli.Exactly(1),
	}
	cmd.DisableFlagsInUseLine = true
	path := configFlag(cmd)
	name := cmd.Flags().String("name", "", "this host's `name` as a member; its hostname if not given")
	addresses := cmd.Flags().StringArray("address", nil, "a host name or IP `address` at which members reach this host; found out if not given")
	noStart := cmd.Flags().Bool("no-start", false, "do not start the agent")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := asRoot(); err != nil {
			return err
		}
		host := setup.Host{Config: *path, State: setup.DefaultState, Log: cli.Log("warn")}
		there, err := host.Member()
		switch {
		case err != nil:
			return err
		case there != nil && (there.Collective != args[0] || !there.Coordinates()):
			return alreadyMember(there)
		case there != nil:
			fmt.Printf("%s was made on this host already; it is %s in it.\n", there.Collective, there.Name)
			return startAndTest(cmd.Context(), host, there, *noStart)
		}
		f := setup.Founding{Collective: args[0], Addresses: *addresses}
		if f.Name, err = memberName(*name); err != nil {
			return err
		}
		public := true
		if len(f.Addresses) == 0 {
			f.Addresses, public = setup.OwnAddresses()
		}
		member, err := host.Found(f)
		if err != nil {
			return err
		}
		fmt.Printf("%s is made. This host is its coordinator and its member %s.\n", member.Collective, member.Name)
		if err := startAndTest(cmd.Context(), host, member, *noStart); err != nil {
			return err
		}
		if !public {
			fmt.Fprintf(os.Stderr, `
Members elsewhere cannot reach this host: its own address is private. If it has a public
one, put that into [coordinator] addresses of %s
and let TCP 45672 and 45673 and UDP 45672 in to it.
`, *path)
		}
		fmt.Fprintf(os.Stderr, `
Next: dcol invite prints a line that lets another host join.
Whoever has the root's key is the collective. It is in %s and not
needed here but once a year (dcol status says when): better carry that folder away.
`, host.RootDir())
		return nil
	}
	return cmd
}

func alreadyMember(m *setup.Membership) error {
	return fmt.Errorf("this host is a member of %s already, as %s: a host is in one collective", m.Collective, m.Name)
}

func configFlag(cmd *cobra.Command) *string {
	return cmd.Flags().StringP("config", "c", config.DefaultPath, "the configuration `file` to write")
}

func asRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("this needs root, for the member's key and the agent: sudo")
	}
	return nil
}

// memberName returns the given name, or one made from the host's own.
func memberName(said string) (string, error) {
	if said != "" {
		return said, nil
	}
	hostname, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find out this host's name: %w", err)
	}
	name := setup.MemberName(hostname)
	if name == "" {
		return "", fmt.Errorf("this host's name %q makes no member's name: choose one with --name", hostname)
	}
	return name, nil
}
