package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/coordinator"
	"github.com/detour-collective/dcol/internal/ui"
)

func inviteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "invite",
		Short: "Print an invitation for one host (on the coordinator)",
		Long: `Prints an invitation: a line of text with which one host can join the collective, once, by
dcol join. It contains a secret: whoever has it can join.`,
		Args: cli.Exactly(0),
	}
	socket := socketFlag(cmd)
	name := cmd.Flags().String("name", "", "the `name` that the new member must take (default any free name)")
	expires := cmd.Flags().Duration("expires", coordinator.DefaultExpires, "the `duration` for which the invitation is valid, at most 720h")
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *expires < time.Second {
			return fmt.Errorf("--expires must be at least 1s, such as 90m or 24h, not %v", *expires)
		}
		i, err := dial(*socket).Invite(cmd.Context(), api.InviteRequest{Name: *name, LifetimeSeconds: expires.Seconds()})
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(i)
		}
		fmt.Println(i.Line)
		fmt.Fprintf(os.Stderr, "\nOn the new host, as root: dcol join INVITATION, with the line above. It works once, until %s.\n"+
			"Whoever has it can join, so treat it like a password. If other users work on that host, use dcol join -:\n"+
			"it reads the invitation from standard input, so they cannot see it in the list of processes.\n", i.Expires.Local().Format("Mon 2 Jan 15:04"))
		return nil
	}
	return cmd
}

func membersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "members",
		Short: "List the collective's members",
		Long: `Lists the members that this host knows of, with what they say of themselves: their roles, the
kinds of detours that they offer, addresses, region and capacity. It also shows whether
others reach a waypoint, how long each certificate is valid, and when each member was last
heard of. This host takes detours through the waypoints marked (used).`,
		Args: cli.Exactly(0),
	}
	socket := socketFlag(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON ("+api.MembersSchema+")")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		members, err := dial(*socket).Members(cmd.Context())
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(members)
		}
		return ui.Members(os.Stdout, members, time.Now())
	}
	return cmd
}

func expelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "expel MEMBER --why TEXT",
		Short: "End a membership (on the coordinator)",
		Long: `Revokes the member's certificates, notifies all members, and removes it from the directory.
Within seconds waypoints end the member's sessions, mappings and tunnels, and no client
uses it as a waypoint. The command waits up to 5 seconds for the waypoints' confirmations,
and lists those that have not confirmed. The member cannot return under its name or with
its key. When its last certificate has expired, dcol invite --name can give the name to
another host. All members, including this one, see the reason.`,
		Example: "  dcol expel mallory --why 'sent spam through bob'",
		Args:    cli.Exactly(1),
	}
	cmd.DisableFlagsInUseLine = true
	socket := socketFlag(cmd)
	why := cmd.Flags().String("why", "", "the `reason`, which all members see")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *why == "" {
			return errors.New("give the reason with --why TEXT; all members will see it")
		}
		began := time.Now()
		var expulsion api.Expulsion
		var err error
		patiently(always("the waypoints to confirm that they refuse "+args[0]), func() {
			expulsion, err = api.Dial(*socket).Expel(cmd.Context(), api.ExpelRequest{Member: args[0], Why: *why})
		})
		if err != nil {
			return err
		}
		if err := ui.Expelled(os.Stdout, expulsion, time.Since(began)); err != nil || expulsion.Pending == "" {
			return err
		}
		return cli.ExitCode(1) // scripts must not consider it done
	}
	return cmd
}
