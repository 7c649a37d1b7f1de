package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/notify"
	"github.com/detour-collective/dcol/internal/printable"
)

const (
	// notifyEvery is the time between two looks at the agent's state.
	notifyEvery = 5 * time.Second
	// notifyWithin limits the time of a program that is run with a notice.
	notifyWithin = 30 * time.Second
)

func notifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "notify [-- PROGRAM [ARGUMENT...]]",
		Short: "Run a program when a waypoint is lost, a problem appears or a quota is nearly used up",
		Long: `Follows the agent, and runs PROGRAM with a notice as its last argument. Notices come when a
waypoint or the direct path is lost or back, a problem appears or is solved, a monthly quota or
a budget is used to 80, 95 or 100 %, and when the agent does not answer. The environment
variable DCOL_EVENT has the kind of the notice. Without PROGRAM, notices are printed. What lasts
for less than 20 seconds gives no notice.

It runs until it is interrupted, as root or as an operator, for instance from a desktop's
autostart or a systemd unit.`,
		Example: `  dcol notify -- notify-send dcol
  dcol notify -- sh -c 'echo "$1" | mail -s "dcol: $DCOL_EVENT" root' sh`,
		Args: cobra.ArbitraryArgs,
	}
	socket := socketFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, program []string) error {
		if len(program) > 0 {
			if _, err := exec.LookPath(program[0]); err != nil {
				return fmt.Errorf("the program to run with notices: %w (install it, or name another; notify-send is in Debian's package libnotify-bin)", err)
			}
		}
		return follow(cmd.Context(), *socket, program)
	}
	return cmd
}

// follow reports notices until ctx ends. It fails if the first state does not come.
func follow(ctx context.Context, socket string, program []string) error {
	var watcher notify.Watcher
	agent := dial(socket) // which tells the user if the first answer takes long; later ones have notices
	for first := true; ; first = false {
		asking, cancel := context.WithTimeout(ctx, notifyEvery)
		status, err := agent.Status(asking)
		cancel()
		if first && err != nil {
			return err
		}
		agent = api.Dial(socket)
		var notices []notify.Notice
		if err != nil {
			notices = watcher.Fail(err, time.Now())
		} else {
			notices = watcher.Take(&status, time.Now())
		}
		for _, n := range notices {
			if err := tell(ctx, program, n); err != nil {
				fmt.Fprintf(os.Stderr, "a notice was not delivered: %v\n", err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(notifyEvery):
		}
	}
}

func tell(ctx context.Context, program []string, n notify.Notice) error {
	text := printable.Text(n.Text)
	if len(program) == 0 {
		_, err := fmt.Printf("%s %s: %s\n", time.Now().Format(time.RFC3339), n.Kind, text)
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, notifyWithin, errors.New("it took too long"))
	defer cancel()
	run := exec.CommandContext(ctx, program[0], append(program[1:len(program):len(program)], text)...)
	run.Env = append(os.Environ(), "DCOL_EVENT="+string(n.Kind))
	run.Stdout, run.Stderr = os.Stderr, os.Stderr
	run.WaitDelay = time.Second
	if err := run.Run(); err != nil {
		return fmt.Errorf("%s: %w", program[0], errors.Join(err, context.Cause(ctx)))
	}
	return nil
}
