// Command dcol gives unmodified programs more than one path through the Internet. docs/cli.md describes its commands.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/mptcpify"
	"github.com/detour-collective/dcol/packaging"
)

// version is set by the linker.
var version = "unknown"

func main() {
	// The supervisors of `dcol run` are this executable under another name.
	if code, ok := mptcpify.Stage(os.Args); ok {
		os.Exit(code)
	}
	os.Exit(cli.Run(command(), sayStart))
}

// sayStart adds to ErrNoAgent what to do about it.
func sayStart(err error) error { return sayStartWith(err, config.DefaultPath) }

// sayStartWith is like sayStart for the configuration in file. If that file exists, it names the command that starts the
// agent, and otherwise those that write the file and start the agent.
func sayStartWith(err error, file string) error {
	if !errors.Is(err, api.ErrNoAgent) {
		return err
	}
	if _, missing := os.Stat(file); errors.Is(missing, fs.ErrNotExist) {
		return fmt.Errorf("%w\nthere is no %s: if this host is no member yet, run dcol join with an invitation, or dcol init", err, file)
	}
	return fmt.Errorf("%w\nstart it as root: %s", err, packaging.StartCommand())
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "dcol",
		Short: "more than one path through the Internet, for unmodified programs",
		Long: `dcol gives unmodified programs on a Linux host with one Internet connection more than
one path through the Internet. Members of a collective forward traffic for each other, as
waypoints. A Multipath TCP (MPTCP) connection then has several paths at once, its subflows:
the direct one, and detours through waypoints.

To begin, create a collective with dcol init, or join one with dcol join and an invitation.
Then dcol run -- PROGRAM makes a program's connections MPTCP, and dcol status shows them.`,
	}
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Membership", []*cobra.Command{
			initCommand(), inviteCommand(), joinCommand(), membersCommand(), expelCommand(), leaveCommand(), caCommand(),
		}},
		{"The agent", []*cobra.Command{
			upCommand(), downCommand(), doctorCommand(), configCommand(), reloadCommand(), logLevelCommand(), agentCommand(),
		}},
		{"Connections", []*cobra.Command{
			runCommand(), statusCommand(), topCommand(), webCommand(), whyCommand(), historyCommand(), notifyCommand(),
		}},
		{"What connections use", []*cobra.Command{
			useCommand(), avoidCommand(), convertCommand(), ccCommand(), optionCommand(), mapCommand(),
		}},
		{"On a waypoint", []*cobra.Command{waypointCommand(), logCommand()}},
		{"Examining networks", []*cobra.Command{traceCommand(), pathsCommand(), probeCommand(), analyseCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title + ":"})
		for _, c := range group.commands {
			c.GroupID = group.title
			root.AddCommand(c)
		}
	}
	root.AddCommand(relayCommand(), handOverCommand())
	completeNames(root)
	cli.Prepare(root, version)
	return root
}
