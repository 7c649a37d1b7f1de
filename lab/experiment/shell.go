package experiment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/tomlfile"
	"github.com/detour-collective/dcol/lab/scenario"
)

// Shell builds the scenario's network, starts the agents and runs commands from in on its hosts,
// interactively or from a stream of lines. It prints the error of a failed line and goes on.
func Shell(ctx context.Context, s *scenario.Scenario, o Options, in *os.File, out io.Writer) error {
	lab, err := build(ctx, s, o, slices.ContainsFunc(s.Hosts, scenario.Host.Serves))
	if err != nil {
		return err
	}
	sh := &shell{lab: lab, out: out, console: newConsole(in, out, environment(lab.opts.Programs.DCol))}
	err = lab.agents.startAll(ctx, sh.plan)
	if err == nil && len(s.Procedures) > 0 { // without procedures, there is no workload to warn about
		_, err = lab.startServer(ctx, lab.crew)
	}
	if err == nil {
		lab.opts.warn(s)
		err = sh.loop(ctx)
	}
	return errors.Join(err, lab.Close())
}

// shell is one session.
type shell struct {
	lab     *Lab
	out     io.Writer
	console console
	host    string // the host on which lines run; empty at first
}

// shellCommand is a command that the shell implements.
type shellCommand struct {
	name, args, help string
	run              func(ctx context.Context, args []string) error
}

// errUsage is the error of a command with the wrong number of arguments.
var errUsage = errors.New("usage")

// commands lists the commands that the shell implements.
func (sh *shell) commands() []shellCommand {
	return []shellCommand{
		{"hosts", "", "list the hosts with their addresses", exactly(0, func(context.Context, []string) error { return sh.showHosts() })},
		{"links", "", "list the links with their present state", exactly(0, func(context.Context, []string) error { return sh.showLinks() })},
		{"set", "LINK [toward HOST] KEY VALUE...", "change a link: rate, delay, jitter, loss, queue and the other keys of links",
			func(_ context.Context, args []string) error { return sh.set(args) }},
		{"down", "LINK", "take a link down", exactly(1, func(_ context.Context, args []string) error { return sh.lab.net.setDown(args[0], true) })},
		{"up", "LINK", "bring it up again", exactly(1, func(_ context.Context, args []string) error { return sh.lab.net.setDown(args[0], false) })},
		{"middlebox", "ROUTER " + middleboxOff + "|KIND", "change what a router does to packets",
			exactly(2, func(_ context.Context, args []string) error { return sh.middlebox(args[0], args[1]) })},
		{"agent", "HOST " + strings.Join(scenario.Words(scenario.AgentActions()), "|"), "act on the host's agent", exactly(2, sh.agent)},
		{"drop-tcp", "HOST on|off", "have a host drop all TCP that it forwards",
			exactly(2, func(_ context.Context, args []string) error { return sh.dropTCP(args[0], args[1]) })},
		{"renumber", "HOST LINK", "give a host other addresses on a link",
			exactly(2, func(_ context.Context, args []string) error { return sh.lab.net.Renumber(args[0], args[1]) })},
		{"kinds", "CLIENT " + strings.Join(scenario.Words(shellKinds), ","), "start a client's agent again with these kinds of detours, the preferred first",
			exactly(2, sh.kinds)},
		{"help", "", "list the commands", exactly(0, func(context.Context, []string) error { return sh.help() })},
		{"exit", "", "end, and remove the network", exactly(0, func(context.Context, []string) error { return errLeave })},
	}
}

// exactly wraps run to refuse any number of arguments but n.
func exactly(n int, run func(context.Context, []string) error) func(context.Context, []string) error {
	return func(ctx context.Context, args []string) error {
		if len(args) != n {
			return errUsage
		}
		return run(ctx, args)
	}
}

func (sh *shell) help() error {
	const hosts = `HOST              work on a host; exit comes back
HOST COMMAND...   run a command on a host, by its sh
`
	var b strings.Builder
	b.WriteString(hosts)
	for _, c := range sh.commands() {
		const column = 18
		usage := strings.TrimSpace(c.name + " " + c.args)
		if len(usage) >= column {
			usage += "\n"
			fmt.Fprintf(&b, "%s%*s%s\n", usage, column, "", c.help)
			continue
		}
		fmt.Fprintf(&b, "%-*s%s\n", column, usage, c.help)
	}
	_, err := io.WriteString(sh.out, b.String())
	return err
}

// errLeave ends the session.
var errLeave = errors.New("leave")

func (sh *shell) loop(ctx context.Context) error {
	if sh.console.interactive() {
		fmt.Fprintln(sh.out, sh.welcome())
		if w := sh.lab.Scenario.Workload; len(sh.lab.Scenario.Procedures) > 0 {
			if command := exampleTraffic(w, sh.lab.serverAddr()); command != "" {
				fmt.Fprintf(sh.out, "For traffic, type: %s %s\n", w.Client, command)
			}
		}
	}
	for {
		line, err := sh.console.readLine(ctx, sh.prompt(), sh.words())
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		err = sh.obey(ctx, strings.TrimSpace(line))
		if errors.Is(err, errLeave) {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			fmt.Fprintf(sh.lab.opts.Stderr, "error: %v\n", err)
		}
	}
}

// welcome returns what the shell says first.
func (sh *shell) welcome() string {
	s, server := sh.lab.Scenario, ""
	if len(s.Procedures) > 0 {
		server = fmt.Sprintf(" The workload's server listens on TCP port %d of %s.", s.Workload.Port, s.Workload.Server)
	}
	return fmt.Sprintf("%s is up: %s.%s Type help for a list of commands.", s.Name, strings.Join(sh.hostNames(), ", "), server)
}

// exampleTraffic returns a command that makes a workload's traffic by MPTCP, or "" if there is none for its kind.
func exampleTraffic(w scenario.Workload, server netip.Addr) string {
	at := netip.AddrPortFrom(server, uint16(w.Port))
	switch w.Kind {
	case scenario.Download:
		return fmt.Sprintf("dcol run iperf3 -c %v -p %d -t 60 -R", server, w.Port)
	case scenario.Upload:
		return fmt.Sprintf("dcol run iperf3 -c %v -p %d -t 60", server, w.Port)
	case scenario.HTTP:
		return fmt.Sprintf("dcol run curl -o /dev/null http://%v/%s", at, webFile(w.Size))
	default:
		return ""
	}
}

func (sh *shell) prompt() string {
	if sh.host != "" {
		return sh.host + "# "
	}
	return sh.lab.Scenario.Name + "> "
}

// words returns the words with which a line can begin.
func (sh *shell) words() []string {
	names := sh.hostNames()
	for _, c := range sh.commands() {
		names = append(names, c.name)
	}
	return names
}

func (sh *shell) hostNames() []string {
	var names []string
	for _, h := range sh.lab.Scenario.Hosts {
		names = append(names, h.Name)
	}
	return names
}

func (sh *shell) obey(ctx context.Context, line string) error {
	if line == "" || strings.HasPrefix(line, "#") {
		return nil
	}
	if sh.host != "" {
		if line == "exit" {
			sh.host = ""
			return nil
		}
		return sh.console.run(ctx, sh.lab.net.Host(sh.host), "sh", "-c", line)
	}
	word, rest, _ := strings.Cut(line, " ")
	for _, c := range sh.commands() {
		if c.name != word {
			continue
		}
		err := c.run(ctx, strings.Fields(rest))
		if errors.Is(err, errUsage) {
			return fmt.Errorf("use it as: %s", strings.TrimSpace(c.name+" "+c.args))
		}
		return err
	}
	switch {
	case !slices.Contains(sh.hostNames(), word):
		return fmt.Errorf("%q is neither a command nor a host; type help", word)
	case strings.TrimSpace(rest) != "":
		return sh.console.run(ctx, sh.lab.net.Host(word), "sh", "-c", rest)
	case sh.console.interactive():
		return sh.enter(ctx, word)
	}
	sh.host = word
	return nil
}

// enter runs a system shell on the host.
func (sh *shell) enter(ctx context.Context, host string) error {
	argv := []string{"env", "PS1=" + host + `:\w# `, "HISTFILE=", "bash", "--norc", "--noprofile", "-i"}
	if _, err := os.Stat("/bin/bash"); err != nil {
		argv = []string{"env", "PS1=" + host + "# ", "sh", "-i"}
	}
	// The user saw the result of the last command typed there.
	_ = sh.console.run(ctx, sh.lab.net.Host(host), argv[0], argv[1:]...)
	return nil
}

// defaultSubflows gives clients in the shell one detour beside the direct path.
const defaultSubflows = 2

// shellKinds is the order in which clients in the shell prefer kinds of detours:
// the cheapest first.
var shellKinds = []scenario.Detour{scenario.InBand, scenario.Mapped, scenario.WireGuard, scenario.OpenVPN}

// plan returns the configuration of a host's agent.
func (sh *shell) plan(h scenario.Host) agentPlan {
	plan := agentPlan{subflows: defaultSubflows, kinds: shellKinds, offers: scenario.Kinds()}
	if h.Has(scenario.RoleClient) {
		plan.via = sh.lab.Scenario.WithRole(scenario.RoleWaypoint)
		if plan.converters = sh.lab.Scenario.WithRole(scenario.RoleConverter); len(plan.converters) > 0 {
			plan.converter, plan.proxy = scenario.ConvertAuto, true
		}
	}
	return plan
}

// kinds starts a client's agent with other kinds of detours.
func (sh *shell) kinds(ctx context.Context, args []string) error {
	client, err := oneOf("client", args[0], sh.lab.Scenario.WithRole(scenario.RoleClient))
	if err != nil {
		return err
	}
	if !sh.lab.agents.used {
		return errors.New("there is no waypoint or converter in this network, so no agents")
	}
	h, _ := sh.lab.Scenario.Host(client)
	plan := sh.plan(h)
	plan.kinds = nil
	for _, word := range strings.Split(args[1], ",") {
		kind, err := oneOf("kind of detour", word, scenario.Words(shellKinds))
		if err != nil {
			return err
		}
		plan.kinds = append(plan.kinds, scenario.Detour(kind))
	}
	sh.lab.agents.stop(client)
	return sh.lab.agents.start(ctx, client, plan)
}

// agent starts, stops or signals a host's agent.
func (sh *shell) agent(ctx context.Context, args []string) error {
	var hosts []string
	for _, name := range sh.hostNames() {
		if sh.lab.agents.all[name] != nil {
			hosts = append(hosts, name)
		}
	}
	if !slices.Contains(hosts, args[0]) {
		return fmt.Errorf("no agent runs on %q%s", args[0], tomlfile.Nearest(args[0], hosts))
	}
	if actions := scenario.Words(scenario.AgentActions()); !slices.Contains(actions, args[1]) {
		return fmt.Errorf("%q is nothing that happens to an agent%s", args[1], tomlfile.Nearest(args[1], actions))
	}
	return sh.lab.agents.act(ctx, args[0], scenario.AgentAction(args[1]))
}

func (sh *shell) dropTCP(host, word string) error {
	if word != "on" && word != "off" {
		return errUsage
	}
	return sh.lab.net.dropTCP(host, word == "on")
}

// middleboxOff is the word for no middlebox.
const middleboxOff = "off"

func middleboxWords() []string {
	return append([]string{middleboxOff}, scenario.Words(scenario.Middleboxes())...)
}

func (sh *shell) middlebox(router, word string) error {
	if _, err := oneOf("router", router, sh.lab.Scenario.WithRole(scenario.RoleRouter)); err != nil {
		return err
	}
	if !slices.Contains(middleboxWords(), word) {
		return fmt.Errorf("%q is nothing a middlebox does%s", word, tomlfile.Nearest(word, middleboxWords()))
	}
	if word == middleboxOff {
		return sh.lab.net.setMiddlebox(router, scenario.NoMiddlebox)
	}
	return sh.lab.net.setMiddlebox(router, scenario.Middlebox(word))
}

// oneOf returns name if it is one of the existing names, or an error that suggests the nearest one.
func oneOf(what, name string, known []string) (string, error) {
	if !slices.Contains(known, name) {
		return "", fmt.Errorf("there is no %s %q%s", what, name, tomlfile.Nearest(name, known))
	}
	return name, nil
}
