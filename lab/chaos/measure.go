package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/detour-collective/dcol/lab/crew"
)

// Holdings counts the things that a member's host and its agent could leak.
type Holdings struct {
	Memory      int `json:"memory_kib"` // resident, of the agent
	Descriptors int `json:"descriptors"`
	Threads     int `json:"threads"`
	BPF         int `json:"bpf"` // programs and maps that the agent holds
	Rules       int `json:"rules"`
	RoutingRule int `json:"routing_rules"`
	Routes      int `json:"routes"`
	Interfaces  int `json:"interfaces"`
	Addresses   int `json:"addresses"`
	Namespaces  int `json:"namespaces"` // of networks, that processes of the host are in
	Conntrack   int `json:"conntrack"`
	Tracked     int `json:"tracked"`     // established connections that conntrack has
	MapEntries  int `json:"map_entries"` // of the agent's BPF hash maps that do not evict
	Relayed     int `json:"relayed"`     // connections that the relay has
}

// holdings measures a host.
func (w inspector) holdings(ctx context.Context, host string) (h Holdings, err error) {
	rules, err := w.run(ctx, host, "nft", "list", "ruleset")
	if err != nil {
		return h, err
	}
	h.Rules = countElements(string(rules))
	tracked, err := w.run(ctx, host, "conntrack", "-L", "-p", "tcp", "--state", "ESTABLISHED")
	if err != nil {
		return h, err
	}
	h.Tracked = strings.Count(string(tracked), "\n")
	if w.plan.Converter != "" && (host == alice || host == converter) {
		s, err := w.status(ctx, host)
		if err != nil {
			return h, err
		}
		if s.Relay != nil {
			for _, part := range s.Relay.Parts {
				h.Relayed += int(part.Open)
			}
		}
	}
	err = w.Host(host).Do(func() error {
		if err := h.countNetwork(); err != nil {
			return err
		}
		return h.countProcesses()
	})
	if err != nil {
		return h, fmt.Errorf("measure %s: %w", host, err)
	}
	return h, nil
}

// countElements counts rules, sets and their elements: an element's line holds as many as it has commas.
func countElements(ruleset string) int {
	return strings.Count(ruleset, "\n") + strings.Count(ruleset, ",")
}

func (h *Holdings) countNetwork() error {
	rules, err := netlink.RuleList(netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	h.RoutingRule, h.Routes, h.Interfaces, h.Addresses = len(rules), len(routes), len(links), len(addrs)
	if data, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count"); err == nil { // else nothing tracks
		h.Conntrack, _ = strconv.Atoi(strings.TrimSpace(string(data)))
	}
	return nil
}

// countProcesses looks at the host's own /proc. Processes that end meanwhile are passed over.
func (h *Holdings) countProcesses() error {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	namespaces := map[string]bool{}
	for _, dir := range dirs {
		if ns, err := os.Readlink(dir + "/ns/net"); err == nil {
			namespaces[ns] = true
		}
		line, err := os.ReadFile(dir + "/cmdline")
		if err != nil {
			continue
		}
		argv := strings.Split(string(line), "\x00")
		if len(argv) < 2 || argv[1] != "agent" {
			continue
		}
		fds, _ := filepath.Glob(dir + "/fd/*")
		h.Descriptors += len(fds)
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "anon_inode:bpf") {
				h.BPF++
			}
			if err := h.countEntries(dir, filepath.Base(fd)); err != nil {
				return err
			}
		}
		status, _ := os.ReadFile(dir + "/status")
		h.Memory += int(crew.Field(string(status), "VmRSS:"))
		h.Threads += int(crew.Field(string(status), "Threads:"))
	}
	h.Namespaces = len(namespaces)
	return nil
}

// countEntries counts the entries of the BPF map behind a file descriptor, if they stay until somebody removes them.
func (h *Holdings) countEntries(process, fd string) error {
	info, _ := os.ReadFile(filepath.Join(process, "fdinfo", fd)) // it may just have been closed
	kind, id := crew.Field(string(info), "map_type:"), crew.Field(string(info), "map_id:")
	if id == 0 || ebpf.MapType(kind) != ebpf.Hash {
		return nil
	}
	m, err := ebpf.NewMapFromID(ebpf.MapID(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer m.Close()
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	all := m.Iterate()
	for all.Next(&key, &value) {
		h.MapEntries++
	}
	if err := all.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) { // it changes meanwhile
		return err
	}
	return nil
}
