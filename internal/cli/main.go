// Package cli has what dcol's programs do alike on a terminal: errors and exit codes, help, usage,
// completion.
package cli

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

	"github.com/detour-collective/dcol/internal/printable"
)

// interrupted is the exit code after Ctrl-C, as shells have it.
const interrupted = 130

// ExitCode ends the program with a code and without a further word.
type ExitCode int

func (c ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// Failure is an error that ends the program with a code other than 1.
type Failure struct {
	Err  error
	Code int
}

func (f Failure) Error() string { return f.Err.Error() }
func (f Failure) Unwrap() error { return f.Err }

// Prepare gives a program's root command what all have: a version, help and completion, and errors for
// whatever is typed wrong. It is called when root has all of its commands.
func Prepare(root *cobra.Command, version string) {
	cobra.EnableCommandSorting = false // what comes first is wanted first
	root.Version = version
	root.SilenceErrors, root.SilenceUsage, root.DisableAutoGenTag = true, true, true
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.AddCommand(completionCommand())
	root.SetHelpCommand(helpCommand())
	root.SetFlagErrorFunc(badFlag)
	explain(root)
}

// Run executes the command line and returns the exit code. It prints an error after mend has added to it
// how to go on, if it knows; nil adds nothing.
func Run(root *cobra.Command, mend func(error) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := root.ExecuteContext(ctx)
	var code ExitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))):
		fmt.Fprintln(os.Stderr, "interrupted")
		return interrupted
	}
	if mend != nil {
		err = mend(err)
	}
	fmt.Fprint(os.Stderr, errorText(err))
	var f Failure
	if errors.As(err, &f) {
		return f.Code
	}
	return 1
}

// errorText returns an error as it is printed. Others' words may be in it, which must not steer the terminal.
func errorText(err error) string {
	text := "error: "
	for i, line := range strings.Split(err.Error(), "\n") {
		if i > 0 {
			text += "       "
		}
		text += printable.Text(line) + "\n"
	}
	return text
}

// Log returns a logger to standard error; what is no level is "info".
func Log(level string) *slog.Logger { return LogTo(os.Stderr, level) }

// LogTo is Log to another writer.
func LogTo(w io.Writer, level string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l}))
}
