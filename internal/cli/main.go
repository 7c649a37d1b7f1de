// Package cli contains what dcol's programs have in common on a terminal: errors and exit codes, help, usage and
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

	"github.com/detour-collective/dcol/internal/loglevel"
	"github.com/detour-collective/dcol/internal/printable"
)

// interrupted is the exit code after Ctrl-C, as in shells.
const interrupted = 130

// ExitCode is an error that ends the program with this code and no message.
type ExitCode int

func (c ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// Failure is an error that ends the program with a code other than 1.
type Failure struct {
	Err  error
	Code int
}

func (f Failure) Error() string { return f.Err.Error() }
func (f Failure) Unwrap() error { return f.Err }

// Prepare adds to a program's root command a version, help, completion, and errors for mistyped
// commands and flags. It must be called after all commands were added.
func Prepare(root *cobra.Command, version string) {
	cobra.EnableCommandSorting = false // keep the order: the most common command is first
	root.Version = version
	root.SilenceErrors, root.SilenceUsage, root.DisableAutoGenTag = true, true, true
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.AddCommand(completionCommand(), manualCommand())
	root.SetHelpCommand(helpCommand())
	root.SetFlagErrorFunc(badFlag)
	explain(root)
	offerNoFiles(root)
	sayWhereTexts(root)
}

// whereTexts follows help that names a text of the repository, such as docs/lab.md.
const whereTexts = "\n\nThe folder docs is in /usr/share/doc/dcol, or in /usr/local/share/doc/dcol after make install."

func sayWhereTexts(cmd *cobra.Command) {
	if strings.Contains(cmd.Long, "docs/") {
		cmd.Long += whereTexts
	}
	for _, sub := range cmd.Commands() {
		sayWhereTexts(sub)
	}
}

// offerNoFiles makes shells complete nothing after commands without arguments. By default they offer files.
func offerNoFiles(cmd *cobra.Command) {
	if cmd.Runnable() && cmd.Use == cmd.Name() && cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, sub := range cmd.Commands() {
		offerNoFiles(sub)
	}
}

// Run executes the command line and returns the exit code. It prints an error after advise has added
// advice to it. If advise is nil, the error is printed unchanged.
func Run(root *cobra.Command, advise func(error) error) int {
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
	if advise != nil {
		err = advise(err)
	}
	fmt.Fprint(os.Stderr, errorText(err))
	var f Failure
	if errors.As(err, &f) {
		return f.Code
	}
	return 1
}

// errorText returns an error for printing. It removes control characters, because the error may
// contain text from others.
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

// Log returns a logger to standard error. An invalid level means "info".
func Log(level string) *slog.Logger { return LogTo(os.Stderr, level) }

// LogTo returns a logger to w; see Log.
func LogTo(w io.Writer, level string) *slog.Logger {
	log, _ := LeveledLog(w, level)
	return log
}

// LeveledLog returns a logger to w whose levels can be changed; see Log.
func LeveledLog(w io.Writer, level string) (*slog.Logger, *loglevel.Levels) {
	l, err := loglevel.Parse(level)
	if err != nil {
		l = slog.LevelInfo
	}
	levels := loglevel.New(l)
	return slog.New(levels.Handler(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))), levels
}
