package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/agent"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/setup"
	"github.com/detour-collective/dcol/internal/ui"
	"github.com/detour-collective/dcol/packaging"
)

func upCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the agent and report what works",
		Long: `Starts the agent, waits until it answers, and reports what works. With systemd it also starts
at each boot from then on. Without systemd it runs in the background until the next boot, and
logs to agent.log in state_dir. If it runs already, this only reports. dcol down ends it.`,
		Args: cli.Exactly(0),
	}
	path := fileFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := asRoot(); err != nil {
			return err
		}
		c, err := config.Load(*path)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("this host is no member yet (there is no %s): run dcol join with an invitation, or dcol init", *path)
		}
		if err != nil {
			return err
		}
		host := setup.Host{Config: *path, State: c.StateDir, Log: cli.Log("error")}
		if c.Collective.Joined() {
			return startAndTest(cmd.Context(), host, &setup.Membership{Name: c.Name, Roles: c.Roles, Socket: c.Socket()}, false)
		}
		if err := os.MkdirAll(c.StateDir, 0o700); err != nil { // for the log
			return err
		}
		patiently(always("the agent to start"), func() { _, err = host.Start(cmd.Context(), c.Socket()) })
		if err != nil {
			return err
		}
		status, err := dial(c.Socket()).Status(cmd.Context())
		if err != nil {
			return err
		}
		return ui.Status(os.Stdout, status, time.Now())
	}
	return cmd
}

// bringDown stops the agent, if one runs, and removes its changes from this host.
func bringDown(ctx context.Context, c *config.Config) (err error) {
	patiently(always("the agent to stop, and its changes to this host to be undone"), func() {
		err = agent.Down(ctx, c, cli.Log("warn"))
	})
	return err
}

func leaveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "End this host's membership",
		Long: `Ends this host's membership in its collective. The command stops the agent for good, removes
its changes from this host as dcol down does, and tells the coordinator. It renames the
configuration and the member's identity, so that the host can join another collective. The
attribution log and the history stay.

The coordinator revokes the certificate, and others stop listing this host. If no coordinator
answers within 10 seconds, this host leaves all the same. Others then list it until its
record expires, and its certificate stays valid until it expires.

On a coordinator this would end the collective for all members, and needs --force.`,
		Args: cli.Exactly(0),
	}
	path := fileFlag(cmd)
	force := cmd.Flags().Bool("force", false, "also on a coordinator")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := asRoot(); err != nil {
			return err
		}
		c, err := config.Load(*path)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("this host is no member: there is no %s", *path)
		}
		if err != nil {
			return err
		}
		if c.Has(config.RoleCoordinator) && !*force {
			return errors.New("this host is a coordinator, without which members cannot renew their certificates: to end the collective, use --force")
		}
		if packaging.SystemdRuns() && *path == config.DefaultPath {
			if err := setup.Disable(cmd.Context()); err != nil {
				return err
			}
		}
		if err := bringDown(cmd.Context(), c); err != nil {
			return err
		}
		var told error
		if c.Collective.Joined() && !c.Has(config.RoleCoordinator) {
			told = tellLeaving(cmd.Context(), c)
		}
		moved, err := setup.SetAside(*path, c.StateDir, time.Now())
		for _, name := range moved {
			fmt.Println("set aside:", name)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s is no longer a member on this host\n", c.Name)
		if told != nil {
			fmt.Fprintf(os.Stderr, "The coordinator does not know that yet: %v\nOthers list %[2]s until its record expires. "+
				"To end that now, ask the coordinator's operator to run: dcol expel %[2]s --why 'has left'\n", told, c.Name)
		}
		return nil
	}
	return cmd
}

// tellWithin bounds the time for which dcol leave waits for a coordinator.
const tellWithin = 10 * time.Second

func tellLeaving(ctx context.Context, c *config.Config) (err error) {
	ctx, cancel := context.WithTimeout(ctx, tellWithin)
	defer cancel()
	patiently(always("the coordinator to hear that this host leaves"), func() { err = setup.TellLeaving(ctx, c, cli.Log("error")) })
	return err
}
