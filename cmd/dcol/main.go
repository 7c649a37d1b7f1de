// Command dcol gives unmodified programs more than one path through the
// Internet. docs/cli.md describes its commands.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/mptcpify"
	"github.com/detour-collective/dcol/internal/printable"
	"github.com/detour-collective/dcol/lab/testbed"
	"github.com/detour-collective/dcol/packaging"
)

// version is set by the linker.
var version = "unknown"

func main() {
	// Some processes of dcol's are this binary under another name.
	testbed.Stage()
	if code, ok := mptcpify.Stage(os.Args); ok {
		os.Exit(code)
	}
	os.Exit(run())
}

// sayError is an error as it is printed. Others' words may be in it, which do not steer the terminal.
func sayError(err error) string {
	text := "error: "
	for i, line := range strings.Split(err.Error(), "\n") {
		if i > 0 {
			text += "       "
		}
		text += printable.Text(line) + "\n"
	}
	return text
}

// run executes the command line and returns the exit code.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := command().ExecuteContext(ctx)
	var said exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &said):
		return int(said)
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))):
		fmt.Fprintln(os.Stderr, "interrupted")
		return interrupted
	}
	if errors.Is(err, api.ErrNoAgent) {
		err = fmt.Errorf("%w\nstart it as root: %s", err, packaging.StartCommand())
	}
	fmt.Fprint(os.Stderr, sayError(err))
	var f failure
	if errors.As(err, &f) {
		return f.code
	}
	return 1
}

// interrupted is the exit code after Ctrl-C, as shells have it.
const interrupted = 130

// exitCode ends the program with a code and without a further word.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// failure is an error that ends the program with a code other than 1.
type failure struct {
	error
	code int
}

func (f failure) Unwrap() error { return f.error }

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "dcol",
		Short: "more than one path through the Internet, for unmodified programs",
		Long: `dcol gives unmodified programs on single-homed Linux hosts more than one path
through the Internet: members of a collective act as waypoints for each other,
and Multipath TCP connections get subflows through them.`,
		Version:           version,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
	}
	cobra.EnableCommandSorting = false // what comes first is wanted first
	root.SetVersionTemplate("dcol {{.Version}}\n")
	root.AddCommand(initCommand(), inviteCommand(), joinCommand(), membersCommand(), expelCommand(),
		agentCommand(), runCommand(), statusCommand(), mapCommand(), waypointCommand(), doctorCommand(), downCommand(),
		caCommand(), logCommand(), labCommand(), completionCommand())
	root.SetHelpCommand(helpCommand())
	root.SetFlagErrorFunc(badFlag)
	explain(root)
	return root
}

func newLogger(level string) *slog.Logger { return loggerTo(os.Stderr, level) }

func loggerTo(w io.Writer, level string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l}))
}
