// Package transport changes this host's TCP as the configuration says: the congestion control of connections, and the
// options by which this host and others ask each other for settings. All of it ends with the agent's process, and needs
// none of the agent's roles. Only internal/agent and cmd/dcol may import it.
package transport

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
)

// Transport holds what the agent has changed.
type Transport struct {
	tables  []config.Congestion
	names   map[string]string // of algorithms of dcol, as the kernel has them
	chooser *cc.Chooser       // nil: no table is in force
	problem string            // why not
	options *exchange         // nil: no options are exchanged
	trouble []string          // with the options
	undo    []io.Closer
}

// Open applies the configuration in the thread's network namespace. What the kernel refuses is a problem for the
// status, because connections work without it.
func Open(settings *config.Config, log *slog.Logger) (*Transport, error) {
	t := &Transport{tables: settings.Congestion, names: make(map[string]string)}
	if len(t.tables) > 0 {
		if err := t.choose(); err != nil {
			t.problem = err.Error()
			log.Warn("congestion controls are not chosen", "err", err)
			if err := t.Close(); err != nil {
				return nil, err
			}
		} else {
			log.Info("congestion controls are chosen", "tables", len(t.tables))
		}
	}
	if WantsOptions(settings.Options) {
		t.exchange(settings, log)
	}
	return t, nil
}

// exchange begins to exchange options.
func (t *Transport) exchange(settings *config.Config, log *slog.Logger) {
	// The client role's prober is called for what joined subflows send.
	x, trouble, err := openExchange(settings.Options, settings.Has(config.RoleClient), t.register, log)
	t.trouble = trouble
	if err != nil {
		t.trouble = append(t.trouble, fmt.Sprintf("TCP options are not exchanged ([options]): %v", err))
	} else {
		t.options, t.undo = x, append(t.undo, x)
	}
	for _, problem := range t.trouble {
		log.Warn("TCP options are limited", "problem", problem)
	}
}

// choose registers the algorithms that the tables name, and puts the tables in force. All are, or none.
func (t *Transport) choose() error {
	var rules []cc.Rule
	for _, table := range t.tables {
		name, err := t.register(table.Use)
		if err != nil {
			return err
		}
		rule := cc.Rule{Cgroup: table.Cgroup, Networks: table.Networks, Name: name}
		for _, p := range table.Ports {
			rule.Ports = append(rule.Ports, uint16(p))
		}
		rules = append(rules, rule)
	}
	chooser, err := cc.Choose(rules)
	if err != nil {
		return err
	}
	t.chooser, t.undo = chooser, append(t.undo, chooser)
	return nil
}

// register returns the kernel's name of an algorithm, which is made known to the kernel if it is one of dcol's.
func (t *Transport) register(use string) (string, error) {
	if name, ok := t.names[use]; ok {
		return name, nil
	}
	if !slices.Contains(cc.Algorithms, cc.Algorithm(use)) {
		return use, nil
	}
	r, err := cc.Register(cc.Algorithm(use))
	if err != nil {
		return "", err
	}
	t.names[use], t.undo = r.Name(), append(t.undo, r)
	return r.Name(), nil
}

// Problems returns what the status must show.
func (t *Transport) Problems() []string {
	problems := slices.Clone(t.trouble)
	if t.problem != "" {
		problems = append(problems, "congestion controls are not chosen ([[congestion]]): "+t.problem)
	}
	return problems
}

// Status describes what is in force.
func (t *Transport) Status() (api.Transport, error) {
	out := api.Transport{Schema: api.TransportSchema, Congestion: []api.Congestion{}, Problem: t.problem}
	available, err := sysctl("tcp_available_congestion_control")
	if err != nil {
		return out, err
	}
	out.Available = strings.Fields(available)
	if out.Default, err = sysctl("tcp_congestion_control"); err != nil {
		return out, err
	}
	counts := make([]cc.Chosen, len(t.tables))
	if t.chooser != nil {
		if counts, err = t.chooser.Chosen(); err != nil {
			return out, err
		}
	}
	for i, table := range t.tables {
		c := api.Congestion{
			Use: table.Use, Name: table.Use, Cgroup: table.Cgroup, Ports: table.Ports, Set: counts[i].Set, Refused: counts[i].Refused,
		}
		if name, ok := t.names[table.Use]; ok {
			c.Name = name
		}
		for _, n := range table.Networks {
			c.Networks = append(c.Networks, n.String())
		}
		out.Congestion = append(out.Congestion, c)
	}
	if t.options != nil {
		out.Options, err = t.options.status()
	}
	return out, err
}

func sysctl(key string) (string, error) {
	data, err := os.ReadFile("/proc/sys/net/ipv4/" + key)
	if err != nil {
		return "", fmt.Errorf("read the kernel's congestion controls: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// Close undoes all changes. Connections keep the congestion control that they have.
func (t *Transport) Close() error {
	var errs []error
	for _, c := range slices.Backward(t.undo) {
		errs = append(errs, c.Close())
	}
	t.undo, t.chooser, t.options = nil, nil, nil
	clear(t.names)
	return errors.Join(errs...)
}
