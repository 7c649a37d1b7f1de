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
		Short: "Print a line that lets one host join (on the coordinator)",
		Args:  cli.Exactly(0),
	}
	socket := socketFlag(cmd)
	name := cmd.Flags().String("name", "", "the `name` that the member must take; as it likes if not given")
	expires := cmd.Flags().Duration("expires", coordinator.DefaultExpires, "how `long` the line counts, at most 720h")
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *expires < time.Second {
			return fmt.Errorf("--expires %v is not a time such as 90m or 24h", *expires)
		}
		i, err := api.Dial(*socket).Invite(cmd.Context(), api.InviteRequest{Name: *name, LifetimeSeconds: expires.Seconds()})
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(i)
		}
		fmt.Println(i.Line)
		fmt.Fprintf(os.Stderr, "\nOn the new host, as root: dcol join LINE, with the line above. It counts once, until %s.\n"+
			"Whoever has it can join, so send it as you would a password. Where others use that host: dcol join -,\n"+
			"which reads the line from standard input, so that it is not seen among the processes.\n", i.Expires.Local().Format("Mon 2 Jan 15:04"))
		return nil
	}
	return cmd
}

func membersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "members",
		Short: "List the collective's members",
		Args:  cli.Exactly(0),
	}
	socket := socketFlag(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON ("+api.MembersSchema+")")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		members, err := api.Dial(*socket).Members(cmd.Context())
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
		Long: `Revokes the member's certificates, tells all members, and takes it out of the directory.
Within seconds every waypoint ends the member's sessions, mappings and tunnels, and
nobody uses it as a waypoint; it waits up to 5 seconds for waypoints to confirm that, and
says which have not. Its name and its key stay refused. The member and the others are
told why.`,
		Example: "  dcol expel mallory --why 'sent spam through bob'",
		Args:    cli.Exactly(1),
	}
	cmd.DisableFlagsInUseLine = true
	socket := socketFlag(cmd)
	why := cmd.Flags().String("why", "", "the `reason`, which everybody is told")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *why == "" {
			return errors.New("why? everybody is told: say it with --why")
		}
		began := time.Now()
		expulsion, err := api.Dial(*socket).Expel(cmd.Context(), api.ExpelRequest{Member: args[0], Why: *why})
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
