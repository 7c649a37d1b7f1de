// Package transport changes this host's TCP as the configuration says: the congestion control of connections, and the
// options by which this host and others ask each other for settings. All of it ends with the agent's process, and needs
// none of the agent's roles. Only internal/agent and cmd/dcol may import it.
package transport

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
)

// Transport holds what the agent has changed. Its methods may be called from any goroutine.
type Transport struct {
	log     *slog.Logger
	granted []string  // congestion controls of dcol that peers may ask for
	options *exchange // nil: no options are exchanged
	trouble []string  // with the options

	closing chan struct{}  // closed by Close
	looking sync.WaitGroup // the look for cgroups of tables

	mu         sync.Mutex
	asked      []config.Congestion         // at run time; before the tables
	tables     []config.Congestion         // of the configuration, but for those that cannot apply
	without    []string                    // why those cannot
	registered map[string]*cc.Registration // algorithms of dcol
	chooser    *cc.Chooser                 // nil: no table is in force
	problem    string                      // why not
	failed     []*cc.AttachError           // cgroups whose tables are not in force
}

// Open applies the configuration in the thread's network namespace. What the kernel refuses is a problem for the
// status, because connections work without it.
func Open(settings *config.Config, log *slog.Logger) (*Transport, error) {
	t := &Transport{log: log, closing: make(chan struct{}), registered: make(map[string]*cc.Registration)}
	t.takeTables(settings.Congestion)
	for _, problem := range t.without {
		log.Warn("a table [[congestion]] does not apply", "problem", problem)
	}
	if len(t.tables) > 0 {
		if err := t.choose(t.tables); err != nil {
			t.problem = err.Error()
			log.Warn("no table [[congestion]] applies", "err", err)
		} else {
			log.Info("tables [[congestion]] apply", "tables", len(t.tables))
		}
	}
	if WantsOptions(settings.Options) {
		t.exchange(settings, log)
	}
	t.looking.Go(t.look)
	return t, nil
}

// exchange begins to exchange options.
func (t *Transport) exchange(settings *config.Config, log *slog.Logger) {
	// With the client role, that role's programs are called for what subflows send.
	t.granted = settings.Options.Accept.Congestion
	x, trouble, err := openExchange(settings.Options, settings.Has(config.RoleClient), t.register, log)
	t.trouble = trouble
	if err != nil {
		t.trouble = append(t.trouble, fmt.Sprintf("TCP options are not exchanged ([options]): %v", err))
	} else {
		t.options = x
	}
	for _, problem := range t.trouble {
		log.Warn("TCP options are limited", "problem", problem)
	}
}

// Problems returns the status's sentences about tables and options that are not in force.
func (t *Transport) Problems() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	problems := slices.Concat(t.trouble, t.tableProblems())
	if t.problem != "" {
		problems = append(problems, "no table [[congestion]] applies: "+t.problem)
	}
	return problems
}

// Status describes the congestion controls and options in force.
func (t *Transport) Status() (api.Transport, error) {
	out := api.Transport{Schema: api.TransportSchema, Congestion: []api.Congestion{}}
	available, err := sysctl("tcp_available_congestion_control")
	if err != nil {
		return out, err
	}
	out.Available = strings.Fields(available)
	if out.Default, err = sysctl("tcp_congestion_control"); err != nil {
		return out, err
	}
	if err := t.describeTables(&out); err != nil {
		return out, err
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
	close(t.closing)
	t.looking.Wait()
	var errs []error
	if t.options != nil {
		errs = append(errs, t.options.Close())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.chooser != nil {
		errs = append(errs, t.chooser.Close())
	}
	for _, r := range t.registered {
		errs = append(errs, r.Close())
	}
	t.options, t.chooser = nil, nil
	clear(t.registered)
	return errors.Join(errs...)
}
