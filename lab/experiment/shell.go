package experiment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/scenario"
)

// Shell builds the scenario's network, starts the agents and runs commands from in on its hosts,
// interactively or from a stream of lines. It prints the error of a failed line and goes on.
func Shell(ctx context.Context, s *scenario.Scenario, o Options, in *os.File, out io.Writer) error {
	lab, err := openWithAgents(ctx, s, o)
	if err != nil {
		return err
	}
	lab.opts.warn(s)
	sh := &shell{lab: lab, in: in, out: out, console: newConsole(in, out, environment(lab.opts.Programs.DCol))}
	err = sh.loop(ctx)
	return errors.Join(err, lab.Close())
}

// shell is one session.
type shell struct {
	lab     *Lab
	in      *os.File
	out     io.Writer
	console console
	host    string // where lines run; none at first
}

const shellHelp = `HOST              work on a host; exit comes back
HOST COMMAND...   run a command on a host, by its sh
hosts             the hosts with their addresses
links             the links with their state now
set LINK [toward HOST] KEY VALUE...
                  change a link: rate, delay, jitter, loss, queue, burst, reorder,
                  duplicate, corrupt, tamper and the other keys of links
down LINK         take a link down
up LINK           bring it up again
middlebox ROUTER strip-options|drop-options|off
                  what a router does to experimental TCP options in SYNs
agent HOST freeze|thaw|kill|stop|start|restart
                  act on the host's agent
drop-tcp HOST on|off
                  have a host drop all TCP that it forwards
renumber HOST LINK
                  give a host other addresses on a link
kinds CLIENT KIND[,KIND...]
                  start its agent again with these kinds of detours, the preferred
                  first: in-band, mapped, wireguard, openvpn
exit              end, and remove the network
`

// errLeave ends the session.
var errLeave = errors.New("leave")

func (sh *shell) loop(ctx context.Context) error {
	if sh.console.interactive() {
		fmt.Fprintf(sh.out, "%s is up: %s. Type help for what there is.\n", sh.lab.Scenario.Name, strings.Join(sh.hostNames(), ", "))
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

func (sh *shell) prompt() string {
	if sh.host != "" {
		return sh.host + "# "
	}
	return sh.lab.Scenario.Name + "> "
}

// words returns what a line can begin with.
func (sh *shell) words() []string {
	return append(sh.hostNames(), "hosts", "links", "set", "down", "up", "middlebox", "agent", "drop-tcp", "renumber", "kinds", "help", "exit")
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
	args := strings.Fields(rest)
	switch word {
	case "help":
		_, err := io.WriteString(sh.out, shellHelp)
		return err
	case "exit", "quit":
		return errLeave
	case "hosts":
		return sh.showHosts()
	case "links":
		return sh.showLinks()
	case "set":
		return sh.set(args)
	case "down", "up":
		if len(args) != 1 {
			return fmt.Errorf("%s takes a link: %s LINK", word, word)
		}
		return sh.lab.LinkDown(args[0], word == "down")
	case "middlebox":
		return sh.middlebox(args)
	case "agent":
		return sh.agent(ctx, args)
	case "drop-tcp":
		return sh.dropTCP(args)
	case "renumber":
		if len(args) != 2 {
			return errors.New("renumber takes a host and a link: renumber HOST LINK")
		}
		return sh.lab.net.Renumber(args[0], args[1])
	case "kinds":
		return sh.kinds(ctx, args)
	}
	if !slices.Contains(sh.hostNames(), word) {
		return fmt.Errorf("%q is neither a command nor a host; type help", word)
	}
	if strings.TrimSpace(rest) != "" {
		return sh.console.run(ctx, sh.lab.net.Host(word), "sh", "-c", rest)
	}
	if sh.console.interactive() {
		return sh.enter(ctx, word)
	}
	sh.host = word
	return nil
}

// enter gives a real shell on the host.
func (sh *shell) enter(ctx context.Context, host string) error {
	argv := []string{"env", "PS1=" + host + `:\w# `, "HISTFILE=", "bash", "--norc", "--noprofile", "-i"}
	if _, err := os.Stat("/bin/bash"); err != nil {
		argv = []string{"env", "PS1=" + host + "# ", "sh", "-i"}
	}
	// The user saw the result of the last command typed there.
	_ = sh.console.run(ctx, sh.lab.net.Host(host), argv[0], argv[1:]...)
	return nil
}
