package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/lab/bench"
	"github.com/detour-collective/dcol/lab/programs"
)

func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:       "bench [NAME...]",
		Short:     "Measure how good dcol is: " + strings.Join(bench.Names(), ", "),
		ValidArgs: bench.Names(),
	}
	out := outFlag(cmd, filepath.Join("out", "bench"))
	verbose := verboseFlag(cmd)
	members := cmd.Flags().Int("members", bench.DefaultMembers, "`number` of members in the benchmark collective")
	repetitions := cmd.Flags().Int("repetitions", 0, fmt.Sprintf("the `number` of times that convert (default %d), selection (as in its suite) and transport (1) measure each figure; from 10 on, transport runs as long as published", bench.DefaultRepetitions))
	messages := cmd.Flags().Int("messages", bench.DefaultMessages, "the `number` of messages or requests that selection measures in each place")
	places := cmd.Flags().String("places", "", "a regular `expression`: only the places of selection, and the parts of transport, whose names it matches (default all)")
	haproxy := cmd.Flags().String("haproxy", filepath.Join(".cache", "haproxy-3.2", "haproxy"), "the `program` of a HAProxy with MPTCP, for convert")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		if *members < minMembers {
			return fmt.Errorf("--members %d: at least %d", *members, minMembers)
		}
		if cmd.Flags().Changed("repetitions") && *repetitions < 1 {
			return fmt.Errorf("--repetitions %d: at least 1", *repetitions)
		}
		if *messages < 1 {
			return fmt.Errorf("--messages %d: at least 1", *messages)
		}
		pair, err := programs.Find()
		if err != nil {
			return err
		}
		return bench.Run(cmd.Context(), names, bench.Options{
			Out: *out, Programs: pair, Members: *members, Repetitions: *repetitions, HAProxy: *haproxy,
			Messages: *messages, Places: *places,
			Stdout: os.Stdout, Stderr: os.Stderr, Log: cli.Log(logLevel(*verbose)),
		})
	}
	return cmd
}

// minMembers is enough for every step of the benchmark collective.
const minMembers = 50
