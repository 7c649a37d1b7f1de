package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/ui"
	"github.com/detour-collective/dcol/internal/units"
)

func useCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "use [WAYPOINT...]",
		Short: "Show or change which waypoints are taken first",
		Long: `Makes connections take detours through these waypoints before all others. Open connections
exchange a detour for one through them, 25 a second. With --only, no other waypoint is taken,
and connections leave detours through other waypoints as soon as they can. Without a waypoint,
prints which waypoints are taken first and which are avoided. dcol status lists the waypoints
in use, and dcol members all of the collective.

The choice replaces that of an earlier dcol use, and what dcol avoid said of these waypoints.
It is in effect until the agent ends, or until dcol use --reset. With --for, what it replaced
returns at the end. client.use, client.use_only and client.avoid in the configuration are
permanent.`,
		Example: `  dcol use bob
  dcol use --only --for 2h bob carol
  dcol use --reset
  dcol use --reset carol`,
		Args: cobra.ArbitraryArgs,
	}
	steer := newSteerFlags(cmd)
	only := cmd.Flags().Bool("only", false, "take no other waypoint")
	reset := cmd.Flags().Bool("reset", false, "undo dcol use and dcol avoid, for these waypoints or for all")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case *reset && (*only || cmd.Flags().Changed("for")):
			return errors.New("--reset takes no --only and no --for")
		case *reset:
			return steer.send(cmd, api.SteerRequest{Word: api.SteerReset, Waypoints: args})
		case len(args) == 0 && !*only && !cmd.Flags().Changed("for"):
			return steer.show(cmd)
		}
		return steer.send(cmd, api.SteerRequest{Word: api.SteerUse, Waypoints: args, Only: *only})
	}
	return cmd
}

func avoidCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "avoid [WAYPOINT...]",
		Short: "Show or change which waypoints are never taken",
		Long: `Keeps all connections from detours through these waypoints. Connections with such a detour
leave it as soon as they have another path, so no connection ends. Without a waypoint, prints
which waypoints are avoided and which are taken first.

The choice is in effect until the agent ends, until dcol use names the waypoint, or until
dcol use --reset. With --for, what it replaced returns at the end. If dcol use --only or
client.use_only allows only some waypoints, these cannot all be avoided. client.avoid in the
configuration is permanent.`,
		Example: `  dcol avoid mallory
  dcol avoid --for 30m carol`,
		Args: cobra.ArbitraryArgs,
	}
	steer := newSteerFlags(cmd)
	reset := cmd.Flags().Bool("reset", false, "")
	_ = cmd.Flags().MarkHidden("reset") // the flag exists
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case *reset:
			return fmt.Errorf("%s undoes both dcol use and dcol avoid", strings.Join(append([]string{"dcol use --reset"}, args...), " "))
		case len(args) == 0 && !cmd.Flags().Changed("for"):
			return steer.show(cmd)
		}
		return steer.send(cmd, api.SteerRequest{Word: api.SteerAvoid, Waypoints: args})
	}
	return cmd
}

var errNoClient = errors.New(`this member is no client: add "client" to roles in its configuration`)

// mostSteered bounds the time of a choice. A longer one is probably a typing error.
const mostSteered = 365 * 24 * time.Hour

// steerFlags are the flags that both commands have.
type steerFlags struct {
	socket *string
	length *time.Duration
}

func newSteerFlags(cmd *cobra.Command) steerFlags {
	return steerFlags{
		socket: cmd.Flags().String("socket", config.DefaultSocket, "the agent's `socket`"),
		length: cmd.Flags().Duration("for", 0, "how long the choice holds, a `duration` such as 90m or 2h, at most 8760h (default until the agent ends)"),
	}
}

// show prints which waypoints are used first and which are avoided now.
func (f steerFlags) show(cmd *cobra.Command) error {
	status, err := dial(*f.socket).Status(cmd.Context())
	if err != nil {
		return err
	}
	if status.Client == nil {
		return errNoClient
	}
	return ui.Steering(os.Stdout, status.Client.Steering, time.Now())
}

// send sends a request to the agent, and prints the choice that is then in effect. The agent refuses a request without waypoints,
// except a reset: it knows which there are.
func (f steerFlags) send(cmd *cobra.Command, r api.SteerRequest) error {
	if cmd.Flags().Changed("for") && (*f.length < time.Second || *f.length > mostSteered) {
		return fmt.Errorf("--for must be 1s to %.0fh, such as 90m or 2h, not %v; client.use and client.avoid in the configuration are permanent", mostSteered.Hours(), *f.length)
	}
	r.ForSeconds = f.length.Seconds()
	choice, err := dial(*f.socket).Steer(cmd.Context(), r)
	if err != nil {
		return err
	}
	if err := ui.Steering(os.Stdout, choice, time.Now()); err != nil {
		return err
	}
	if r.Word == api.SteerReset {
		return configured(choice, r.Waypoints)
	}
	ends := "holds until the agent ends"
	if r.ForSeconds > 0 {
		ends = fmt.Sprintf("ends after %v, and what it replaced returns", units.Duration(*f.length))
	}
	_, err = fmt.Printf("The choice of %s %s. dcol use --reset undoes all choices.\n", strings.Join(r.Waypoints, ", "), ends)
	return err
}

// configured prints which waypoints stay in the choice after a reset, because the configuration names them.
func configured(choice api.Steering, reset []string) error {
	for _, key := range []struct {
		name string
		list []api.Steered
	}{{"client.use", choice.Use}, {"client.avoid", choice.Avoid}} {
		for _, w := range key.list {
			if !slices.Contains(reset, w.Name) {
				continue
			}
			if _, err := fmt.Printf("%s is in %s of the configuration, which dcol config set and dcol reload change.\n", w.Name, key.name); err != nil {
				return err
			}
		}
	}
	return nil
}
