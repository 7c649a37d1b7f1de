package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/doctor"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/printable"
	"github.com/detour-collective/dcol/internal/setup"
	"github.com/detour-collective/dcol/packaging"
)

func joinCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "join INVITATION|FILE|- [--name MEMBER] [--client-only]",
		Short: "Make this host a member of a collective, with an invitation from dcol invite",
		Long: `Creates a private key, which stays on this host, and gets a certificate for it from the
coordinator that the invitation names. Then writes the configuration, starts the agent and
reports what works. If the command fails or is interrupted, run it again to continue.

Whoever has the invitation can join with it. Other users of this host can see it in the list
of processes while the command runs. To prevent that, give '-' to read it from standard
input, or the name of a file that contains it.`,
		Example: "  dcol join dcol1-...\n  dcol join -    # paste the invitation, then Enter",
		Args:    cli.Exactly(1),
	}
	cmd.DisableFlagsInUseLine = true
	path := configFlag(cmd)
	name := cmd.Flags().String("name", "", "this host's `name` as a member (default the one in the invitation, or its hostname)")
	clientOnly := cmd.Flags().Bool("client-only", false, "do not be a waypoint: use others and offer nothing")
	noStart := cmd.Flags().Bool("no-start", false, "do not start the agent")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		line, err := invitation(args[0], cmd.InOrStdin())
		if err != nil {
			return err
		}
		if err := asRoot(); err != nil {
			return err
		}
		host := setup.Host{Config: *path, State: setup.DefaultState, Log: cli.Log("warn")}
		there, err := host.Member()
		switch {
		case err != nil:
			return err
		case there != nil && there.Collective != line.Collective:
			return alreadyMember(there)
		case there != nil:
			fmt.Printf("This host is already the member %[2]s of %[1]s. The invitation was not used.\n", there.Collective, there.Name)
			return startAndTest(cmd.Context(), host, there, *noStart)
		}
		j := setup.Joining{Line: line, Name: *name, ClientOnly: *clientOnly}
		if j.Name == "" && line.Name != "" {
			j.Name = line.Name
		} else if j.Name, err = memberName(*name); err != nil {
			return err
		}
		var member *setup.Membership
		patiently(asking(line), func() { member, err = host.Join(cmd.Context(), j) })
		if err != nil {
			return explainRefusal(err)
		}
		fmt.Printf("This host is a member of %s now: %s.\n", member.Collective, member.Name)
		return startAndTest(cmd.Context(), host, member, *noStart)
	}
	return cmd
}

// invitation returns the invitation in an argument, or in the file that the argument names.
func invitation(arg string, stdin io.Reader) (enrol.Line, error) {
	switch {
	case arg == "-":
		return typedInvitation(stdin)
	case enrol.IsLine(arg):
		return enrol.ParseLine(arg)
	}
	file, err := os.Open(arg)
	if errors.Is(err, fs.ErrNotExist) {
		_, err := enrol.ParseLine(arg)
		return enrol.Line{}, fmt.Errorf("%w; or name a file that contains the invitation", err)
	}
	if err != nil {
		return enrol.Line{}, fmt.Errorf("read the invitation: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxInvitation))
	if err != nil {
		return enrol.Line{}, fmt.Errorf("read the invitation: %w", err)
	}
	return enrol.ParseLine(string(text))
}

// typedInvitation reads lines, because mail programs may break an invitation, until it is complete,
// the input ends or a line is empty.
func typedInvitation(stdin io.Reader) (enrol.Line, error) {
	var text string
	for scanner := bufio.NewScanner(io.LimitReader(stdin, maxInvitation)); scanner.Scan(); {
		part := strings.TrimSpace(scanner.Text())
		if part == "" && text != "" {
			break
		}
		text += part
		if line, err := enrol.ParseLine(text); err == nil {
			return line, nil
		}
	}
	return enrol.ParseLine(text)
}

// maxInvitation exceeds the length of any invitation of dcol invite, with white space.
const maxInvitation = 8 << 10

// explainRefusal adds to a refused name the flag with which the same invitation works.
func explainRefusal(err error) error {
	r, ok := errors.AsType[*enrol.Refusal](err)
	if ok && r.Proposal != "" && (r.Reason == enrol.NameTaken || r.Reason == enrol.NameDiffers) {
		return fmt.Errorf("%w\nrun the same command with --name %s: the invitation is still valid", err, r.Proposal)
	}
	return err
}

// asking returns a function that names an invitation's coordinators.
func asking(line enrol.Line) func() string {
	var all []string
	for _, at := range line.Coordinators {
		all = append(all, fmt.Sprintf("%s at TCP %s", at.Name, at.Address))
	}
	return always("an answer from the coordinator " + strings.Join(all, " or "))
}

// testWithin bounds the self-test. Other members test a new waypoint within a few seconds.
const testWithin = 20 * time.Second

// startsAgent returns the command that starts a host's agent, permanently if systemd runs.
func startsAgent(host setup.Host) string {
	if packaging.SystemdRuns() && host.Config == config.DefaultPath {
		return "systemctl enable --now dcol"
	}
	return "dcol agent --config " + host.Config
}

// startAndTest starts the agent and prints what works.
func startAndTest(ctx context.Context, host setup.Host, m *setup.Membership, noStart bool) error {
	if noStart {
		fmt.Fprintf(os.Stderr, "The agent was not started. To start it: %s\n", startsAgent(host))
		return nil
	}
	var running *setup.Running
	var err error
	patiently(always("the agent to start"), func() { running, err = host.Start(ctx, m.Socket) })
	if err != nil {
		return err
	}
	switch {
	case running.Before:
	case running.Systemd:
		fmt.Println("The agent runs, and will after each boot (systemctl status dcol).")
	default:
		fmt.Printf("The agent runs in the background until the next reboot; its log is %s.\n", running.Log)
	}
	var findings []setup.Finding
	var waitsFor atomic.Value
	waitsFor.Store("the agent's report")
	patiently(func() string { return waitsFor.Load().(string) }, func() {
		findings, err = setup.Test(ctx, m.Socket, testWithin, func(f setup.Finding) { waitsFor.Store(f.Text) })
	})
	if err != nil {
		return err
	}
	for _, f := range findings {
		fmt.Printf("  %-5s  %s\n", f.State, printable.Text(f.Text))
	}
	if setup.Failed(findings) {
		return cli.ExitCode(1)
	}
	if (&config.Config{Roles: m.Roles}).Has(config.RoleClient) {
		adviseChecksums()
	}
	return nil
}

// adviseChecksums prints how to turn MPTCP's checksums on, if they are off on this host.
func adviseChecksums() {
	enabled, err := os.ReadFile("/proc/sys/net/mptcp/checksum_enabled")
	if err == nil && strings.TrimSpace(string(enabled)) == "0" {
		fmt.Fprintf(os.Stderr, "hint: MPTCP's checksums are off, so dcol cannot detect a detour that changes data. To turn them on: %s\n", doctor.FixChecksums)
	}
}
