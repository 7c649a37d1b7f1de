package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/agent"
	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/ui"
)

func reloadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make the running agent read its configuration again",
		Long: `Makes the running agent read its configuration again, as SIGHUP does. Connections continue.
The command lists the changes that are in effect now, and those that need a restart of the
agent. If the file has an error, nothing changes.`,
		Args: cli.Exactly(0),
	}
	socket := socketFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		changes, err := dial(*socket).Reload(cmd.Context(), api.ReloadRequest{})
		if err != nil {
			return err
		}
		return ui.Reloaded(os.Stdout, changes)
	}
	return cmd
}

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show, check and change the configuration",
		Long: `Shows, checks and changes the configuration. After a change, dcol reload makes the running
agent read the file again. docs/configuration.md lists all keys.`,
	}
	cmd.AddCommand(configGetCommand(), configSetCommand(), configCheckCommand(), configDiffCommand())
	return cmd
}

func fileFlag(cmd *cobra.Command) *string {
	return cmd.Flags().StringP("config", "c", config.DefaultPath, "the configuration `file`")
}

func configGetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get [KEY|SECTION]",
		Short: "Print the value of a key, or the keys of a section, or all, with their values",
		Example: `  dcol config get client.subflows
  dcol config get client`,
		Args: cobra.MaximumNArgs(1),
	}
	path := fileFlag(cmd)
	cmd.ValidArgsFunction = completeKeys
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		c, err := config.Load(*path)
		if err != nil {
			return err
		}
		if len(args) == 0 {
			return printSettings(c.Settings())
		}
		if section := c.Section(args[0]); len(section) > 0 {
			return printSettings(section)
		}
		s, err := c.Setting(args[0])
		if err != nil {
			return err
		}
		_, err = fmt.Println(s.Raw())
		return err
	}
	return cmd
}

func printSettings(list []config.Setting) error {
	for _, s := range list {
		if _, err := fmt.Printf("%s = %s\n", s.Key, s.Value); err != nil {
			return err
		}
	}
	return nil
}

func configSetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set KEY VALUE [KEY VALUE]...",
		Short: "Change the values of keys in the file",
		Long: `Changes the values of keys in the file, and nothing else: other lines and comments stay.
Of several keys, all are changed or none. VALUE is written as in the file; a string needs no
quotes, except in a list. A value that would make the configuration wrong is refused. If the
host's identity is in order, so is one that does not go together with it, such as another name.`,
		Example: `  dcol config set client.subflows 3
  dcol config set client.tls_ports '[443, 8443]'
  dcol config set client.use '["bob", "carol"]'
  dcol config set client.budget.metered 1GB client.budget.metered_interfaces '["wwan0"]'`,
		Args: pairs,
	}
	path := fileFlag(cmd)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args)%2 == 0 {
			args = nil // a key is next, as at first
		}
		return completeKeys(cmd, args, word)
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		var list []config.Assignment
		for pair := range slices.Chunk(args, 2) {
			list = append(list, config.Assignment{Key: pair[0], Value: pair[1]})
		}
		changes, err := config.Set(*path, list, stillUsable(*path))
		if err != nil {
			return err
		}
		for _, change := range changes {
			switch {
			case change.From == change.To:
				fmt.Fprintf(os.Stderr, "%s was %s already\n", change.Key, change.From)
			case change.Reload:
				fmt.Fprintf(os.Stderr, "%s was %s and is %s; dcol reload applies it to a running agent\n", change.Key, change.From, change.To)
			default:
				fmt.Fprintf(os.Stderr, "%s was %s and is %s; it is in effect after a restart of the agent\n", change.Key, change.From, change.To)
			}
		}
		return nil
	}
	return cmd
}

// pairs requires keys and values in turns.
func pairs(cmd *cobra.Command, args []string) error {
	if n := len(args); n > 2 && n%2 != 0 {
		return fmt.Errorf("VALUE is missing after %q; a list is one argument in quotes, such as '[443, 8443]'", args[n-1])
	}
	return cli.Exactly(2)(cmd, args[:min(len(args), 2)])
}

// stillUsable returns a check for a changed configuration. The check requires that the configuration fits
// the host's identity only if the one at path fits now, because some hosts are configured before they have
// their certificate.
func stillUsable(path string) func(*config.Config) error {
	prepare := func(c *config.Config) error { return isUsable(c, path, io.Discard) }
	before, err := config.Load(path)
	if err != nil || prepare(before) != nil {
		return agent.Check
	}
	return prepare
}

// isUsable returns an error if no agent could run with a configuration and its identity. Warnings go to out.
func isUsable(c *config.Config, path string, out io.Writer) error {
	log, levels := cli.LeveledLog(out, c.LogLevel)
	_, err := agent.Prepare(c, path, version, log, levels)
	return err
}

func configCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the configuration and the identity",
		Args:  cli.Exactly(0),
	}
	path := fileFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := config.Load(*path)
		if err != nil {
			return err
		}
		if err := isUsable(c, *path, os.Stderr); err != nil {
			return err
		}
		_, err = fmt.Printf("%s: ok\n", *path)
		return err
	}
	return cmd
}

func configDiffCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff",
		Short: "Show how the file differs from what the agent uses, or from the defaults",
		Long: `Shows the keys whose values in the file differ from those that the running agent uses, and
whether dcol reload or a restart takes them over. With --defaults, shows the keys whose
values differ from the defaults, and asks no agent.`,
		Args: cli.Exactly(0),
	}
	path, socket := fileFlag(cmd), socketFlag(cmd)
	defaults := cmd.Flags().Bool("defaults", false, "compare with the defaults")
	cmd.MarkFlagsMutuallyExclusive("defaults", "socket")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !*defaults {
			if cmd.Flags().Changed("config") {
				return errors.New("--config goes with --defaults: a running agent reads the file with which it was started")
			}
			changes, err := dial(*socket).Reload(cmd.Context(), api.ReloadRequest{DryRun: true})
			if err != nil {
				return err
			}
			return ui.Pending(os.Stdout, changes)
		}
		c, err := config.Load(*path)
		if err != nil {
			return err
		}
		standard := config.Defaults()
		for i, s := range c.Settings() {
			if from := standard[i].Value; from != s.Value {
				if _, err := fmt.Printf("%s: %s -> %s\n", s.Key, from, s.Value); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return cmd
}

// completeKeys completes the first argument.
func completeKeys(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var keys []string
	for _, s := range config.Defaults() {
		keys = append(keys, s.Key)
	}
	return keys, cobra.ShellCompDirectiveNoFileComp
}
