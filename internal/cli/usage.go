package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/detour-collective/dcol/internal/tomlfile"
)

// explain makes a mistyped command fail with an error that shows the correct usage. By default, cobra prints help for a
// mistyped subcommand and exits with 0.
func explain(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		explain(sub)
	}
	if onlyGroups(cmd) {
		cmd.Args = knownCommand
		cmd.DisableFlagsInUseLine = true
		if cmd.RunE == nil {
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
		return
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error { return withUsage(cmd, check(cmd, args)) }
	}
}

// onlyGroups reports whether a command requires a subcommand and takes no arguments itself.
func onlyGroups(cmd *cobra.Command) bool {
	return cmd.HasSubCommands() && !strings.Contains(cmd.Use, " ")
}

// badFlag explains an error about a flag. If the subcommand is mistyped, its flags are unknown, too. Then the error
// names the subcommand.
func badFlag(cmd *cobra.Command, err error) error {
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		err = badValue(wrong)
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && unknown.GetSpecifiedShortnames() != "" {
		err = unknownShort(cmd, unknown.GetSpecifiedShortnames())
	}
	if onlyGroups(cmd) {
		if unknown := knownCommand(cmd, cmd.Flags().Args()); unknown != nil {
			return unknown
		}
	}
	return withUsage(cmd, err)
}

// unknownShort returns the error about a flag with one hyphen that does not exist.
func unknownShort(cmd *cobra.Command, name string) error {
	if cmd.Flags().Lookup(name) != nil {
		return fmt.Errorf("unknown flag: -%s; did you mean --%s?", name, name)
	}
	return fmt.Errorf("unknown flag: -%s", name)
}

// badValue replaces the standard library's parse error by one that names the values that a flag accepts.
func badValue(err *pflag.InvalidValueError) error {
	flag := err.GetFlag()
	why := err.Unwrap().Error()
	switch flag.Value.Type() {
	case "int":
		why = "it must be a whole number"
	case "intSlice":
		why = "it must be whole numbers with commas between them, such as 80,443"
	case "bool":
		why = "it must be true or false"
	case "duration":
		if _, ours := flag.Value.(Duration); ours { // its own error is clear
			return fmt.Errorf("--%s: %s", flag.Name, why)
		}
		why = "it must be a time such as 90m or 2h"
	}
	return fmt.Errorf("--%s %s: %s", flag.Name, err.GetValue(), why)
}

// Exactly accepts exactly n arguments. Its error names a missing one as in the usage.
func Exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < n:
			return fmt.Errorf("%s is missing", strings.Fields(cmd.Use)[1+len(args)])
		case len(args) > n:
			return fmt.Errorf("%q is one argument too many", args[n])
		}
		return nil
	}
}

func withUsage(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	usage := cmd.UseLine()
	if onlyGroups(cmd) {
		usage += " COMMAND"
	}
	return fmt.Errorf("%w\nusage: %s", err, usage)
}

// knownCommand rejects arguments to a command that only has subcommands.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var known []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			known = append(known, sub.Name())
		}
	}
	return fmt.Errorf("%q is not a command of %s%s", args[0], cmd.CommandPath(), tomlfile.Nearest(args[0], known))
}

func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND...]",
		Short: "Explain a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if onlyGroups(about) {
				if err := knownCommand(about, rest); err != nil {
					return err
				}
			}
			about.InitDefaultHelpFlag()
			about.InitDefaultVersionFlag()
			return about.Help()
		},
	}
}

func completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use:       "completion SHELL",
		Short:     "Print a completion script for " + strings.Join(shells, ", "),
		Long:      "Prints a script that makes a shell complete the program's commands and flags. `make\ninstall` puts it where the shells look.",
		ValidArgs: shells,
		Args:      cobra.MatchAll(Exactly(1), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			default:
				return root.GenFishCompletion(out, true)
			}
		},
	}
}
