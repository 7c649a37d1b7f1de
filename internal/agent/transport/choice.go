package transport

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
)

// takeTables takes over the configuration's tables, except those whose algorithm this host cannot have.
func (t *Transport) takeTables(tables []config.Congestion) {
	for _, table := range tables {
		name, err := t.register(table.Use)
		if err == nil {
			err = cc.Available(name)
		}
		if err != nil {
			t.without = append(t.without, fmt.Sprintf("a table does not apply ([[congestion]] use = %q): %v", table.Use, err))
			continue
		}
		t.tables = append(t.tables, table)
	}
}

// lookEvery is the time between two looks for cgroups of tables that were not there.
const lookEvery = time.Second

// choose replaces the tables in force by these, and registers the algorithms that they name. If it returns
// an error, the earlier tables stay in force. A table whose cgroup cannot be used is no error, unless
// needed names that cgroup. It comes into force when the cgroup can be used.
func (t *Transport) choose(tables []config.Congestion, needed ...string) error {
	var rules []cc.Rule
	for _, table := range tables {
		name, err := t.register(table.Use)
		if err != nil {
			return errors.Join(err, t.unregister(t.inForce()))
		}
		rule := cc.Rule{Cgroup: table.Cgroup, Networks: table.Networks, Name: name}
		for _, p := range table.Ports {
			rule.Ports = append(rule.Ports, uint16(p))
		}
		rules = append(rules, rule)
	}
	var chooser *cc.Chooser
	var failed []*cc.AttachError
	if len(rules) > 0 {
		var err error
		// The old programs stay attached until the new ones are attached. Of two programs, the one that
		// was attached last decides.
		if chooser, failed, err = attach(rules, needed); err != nil {
			return errors.Join(err, t.unregister(t.inForce()))
		}
	}
	var err error
	if t.chooser != nil {
		err = t.chooser.Close()
	}
	t.chooser = chooser
	t.noteFailed(failed)
	return errors.Join(err, t.unregister(tables))
}

// attach loads and attaches the programs of rules. It returns the cgroups that cannot be used, or an error
// if one of them is needed.
func attach(rules []cc.Rule, needed []string) (*cc.Chooser, []*cc.AttachError, error) {
	chooser, err := cc.Choose(rules)
	if err != nil {
		return nil, nil, err
	}
	failed := chooser.Attach()
	for _, f := range failed {
		if slices.Contains(needed, f.Cgroup) {
			return nil, nil, errors.Join(f, chooser.Close())
		}
	}
	return chooser, failed, nil
}

// noteFailed records the cgroups that cannot be used now. It logs those that are new, and those that can be used again.
func (t *Transport) noteFailed(failed []*cc.AttachError) {
	among := func(list []*cc.AttachError, cgroup string) bool {
		return slices.ContainsFunc(list, func(f *cc.AttachError) bool { return f.Cgroup == cgroup })
	}
	for _, f := range failed {
		if !among(t.failed, f.Cgroup) {
			t.log.Warn("tables [[congestion]] of a cgroup do not apply", "cgroup", f.Cgroup, "err", f)
		}
	}
	for _, f := range t.failed {
		if !among(failed, f.Cgroup) {
			t.log.Info("the problem with a cgroup's congestion control has ended", "cgroup", f.Cgroup)
		}
	}
	t.failed = failed
}

// look attaches the programs to cgroups that appear, until the transport is closed. These include cgroups
// that are removed and made again, such as a service's when it restarts.
func (t *Transport) look() {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-t.closing:
			return
		case <-ticker.C:
		}
		t.mu.Lock()
		if t.chooser != nil {
			t.noteFailed(t.chooser.Attach())
		}
		t.mu.Unlock()
	}
}

// tableProblems returns why some tables do not apply.
func (t *Transport) tableProblems() []string {
	problems := slices.Clone(t.without)
	for _, f := range t.failed {
		tables := "without cgroup"
		if f.Cgroup != "" {
			tables = fmt.Sprintf("cgroup = %q", f.Cgroup)
		}
		problems = append(problems, fmt.Sprintf("tables do not apply, which the agent tries again each second ([[congestion]] %s): %v", tables, f))
	}
	return problems
}

// inForce returns the tables that are in force.
func (t *Transport) inForce() []config.Congestion {
	if t.chooser == nil {
		return nil
	}
	return slices.Concat(t.asked, t.tables)
}

// register returns the kernel's name of an algorithm. It registers dcol's own algorithms with the kernel.
func (t *Transport) register(use string) (string, error) {
	if r, ok := t.registered[use]; ok {
		return r.Name(), nil
	}
	if !slices.Contains(cc.Algorithms, cc.Algorithm(use)) {
		return use, nil
	}
	r, err := cc.Register(cc.Algorithm(use))
	if err != nil {
		return "", err
	}
	t.registered[use] = r
	return r.Name(), nil
}

// unregister removes those of dcol's algorithms from the kernel that neither the tables nor peers'
// requests need.
func (t *Transport) unregister(tables []config.Congestion) error {
	var errs []error
	for use, r := range t.registered {
		if slices.Contains(t.granted, use) || slices.ContainsFunc(tables, func(c config.Congestion) bool { return c.Use == use }) {
			continue
		}
		errs = append(errs, r.Close())
		delete(t.registered, use)
	}
	return errors.Join(errs...)
}

// Use changes the congestion control of connections that begin from now on, until the agent ends. It takes
// precedence over the configuration's tables, and replaces an earlier request for the same connections.
func (t *Transport) Use(r api.CongestionRequest) (api.Transport, error) {
	t.mu.Lock()
	asked := t.asked
	var needed []string
	err := error(nil)
	if r.Reset {
		asked = nil
	} else {
		asked, err = withRequest(asked, r)
		needed = []string{r.Cgroup}
	}
	if err == nil {
		err = t.choose(slices.Concat(asked, t.tables), needed...)
	}
	if err == nil {
		t.asked, t.problem = asked, ""
	}
	t.mu.Unlock()
	if err != nil {
		return api.Transport{}, err
	}
	return t.Status()
}

// withRequest returns the tables that were requested at run time, with one more in front.
func withRequest(asked []config.Congestion, r api.CongestionRequest) ([]config.Congestion, error) {
	table := config.Congestion{Use: r.Use, Cgroup: r.Cgroup, Ports: r.Ports}
	for _, text := range r.Networks {
		n, err := network(text)
		if err != nil {
			return nil, err
		}
		table.Networks = append(table.Networks, n)
	}
	if err := table.Check(); err != nil {
		return nil, err
	}
	kept := slices.DeleteFunc(slices.Clone(asked), func(c config.Congestion) bool {
		return c.Cgroup == table.Cgroup && slices.Equal(c.Ports, table.Ports) && slices.Equal(c.Networks, table.Networks)
	})
	return append([]config.Congestion{table}, kept...), nil
}

// network returns a network, or an address as a network of its own.
func network(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	n, err := netip.ParsePrefix(text)
	if err != nil {
		return n, fmt.Errorf("%q is no network: write one such as 203.0.113.0/24, or an address", text)
	}
	return n, nil
}

// describeTables adds the tables to out, with their problems and the number of connections to which each was applied.
func (t *Transport) describeTables(out *api.Transport) (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	problems := t.tableProblems()
	if t.problem != "" {
		problems = append(problems, t.problem)
	}
	out.Problem = strings.Join(problems, "; ")
	tables := slices.Concat(t.asked, t.tables)
	counts := make([]cc.Chosen, len(tables))
	if t.chooser != nil {
		if counts, err = t.chooser.Chosen(); err != nil {
			return err
		}
	}
	for i, table := range tables {
		c := api.Congestion{
			Use: table.Use, Name: table.Use, Cgroup: table.Cgroup, Ports: table.Ports, Set: counts[i].Set, Refused: counts[i].Refused,
			AtRunTime: i < len(t.asked),
		}
		if r, ok := t.registered[table.Use]; ok {
			c.Name = r.Name()
		}
		for _, n := range table.Networks {
			c.Networks = append(c.Networks, n.String())
		}
		out.Congestion = append(out.Congestion, c)
	}
	return nil
}
