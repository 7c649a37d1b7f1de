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
		Short: "Create a collective, with this host as its coordinator and first member",
		Long: `Creates a collective on this host: its keys, its coordinator, and its first member, which
is a client and a waypoint. Then starts the agent and reports what works. Other hosts join
with an invitation from dcol invite.`,
		Example: "  dcol init friends",
		Args:    cli.Exactly(1),
	}
	cmd.DisableFlagsInUseLine = true
	path := configFlag(cmd)
	name := cmd.Flags().String("name", "", "this host's `name` as a member (default its hostname)")
	addresses := cmd.Flags().StringArray("address", nil, "a host name or IP `address` at which members reach this host (default its own addresses)")
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
			fmt.Printf("The collective %s exists already; this host is its member %s.\n", there.Collective, there.Name)
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
		fmt.Printf("The collective %s is created. This host is its coordinator and its member %s.\n", member.Collective, member.Name)
		if err := startAndTest(cmd.Context(), host, member, *noStart); err != nil {
			return err
		}
		if !public {
			fmt.Fprintf(os.Stderr, `
Members in other networks cannot reach this host: its own address is private. If it has a
public address, add it to [coordinator] addresses in %s,
and forward TCP 45672 and 45673 and UDP 45672 to this host.
`, *path)
		}
		fmt.Fprintf(os.Stderr, `
Next: dcol invite prints an invitation, with which another host can join.
Keep the root's key safe: whoever has it controls the collective. It is in
%s and is needed only once a year (dcol status shows when),
so move that folder to a safe place.
`, host.RootDir())
		return nil
	}
	return cmd
}

func alreadyMember(m *setup.Membership) error {
	return fmt.Errorf("this host is already the member %[2]s of %[1]s, and a host can be in one collective only: to leave it, run dcol leave", m.Collective, m.Name)
}

func configFlag(cmd *cobra.Command) *string {
	return cmd.Flags().StringP("config", "c", config.DefaultPath, "the configuration `file` to write")
}

func asRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("this command needs root, for the member's key and the agent: run it with sudo")
	}
	return nil
}

// memberName returns the given name, or one derived from the hostname.
func memberName(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	hostname, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("get this host's name: %w", err)
	}
	name := setup.MemberName(hostname)
	if name == "" {
		return "", fmt.Errorf("this host's name %q cannot be a member's name: choose one with --name", hostname)
	}
	return name, nil
}
