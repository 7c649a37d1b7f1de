package inband

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// adopted are maps of an earlier process, by their names in the programs.
type adopted map[string]*ebpf.Map

func (a adopted) close() {
	for _, m := range a {
		m.Close()
	}
}

// kept are the maps that outlive a process; the others hold nothing between
// packets.
var kept = []string{"clients", "seen", "counts"}

// adopt finds the maps of the filters that an earlier process left at ingress.
// It finds none where that is not allowed, or where another version of the
// programs had other maps.
func adopt(handle *netlink.Handle, spec *ebpf.CollectionSpec) (adopted, error) {
	state, err := readQdiscs(handle)
	if err != nil {
		return nil, err
	}
	for _, link := range state.links {
		qdisc := state.kinds[link.Attrs().Index]
		if qdisc == "" {
			continue
		}
		there, err := listFilters(handle, link, qdisc)
		if err != nil {
			if gone(handle, link.Attrs().Index) {
				continue
			}
			return nil, err
		}
		for _, filter := range there.ours(atIngress) {
			maps, err := mapsOf(ebpf.ProgramID(filter.Id), spec)
			switch {
			case errors.Is(err, unix.EPERM):
				return nil, nil
			case errors.Is(err, unix.ENOENT): // it went meanwhile
			case err != nil:
				return nil, fmt.Errorf("take over the keys of the filter %s on %s: %w", filter.Name, link.Attrs().Name, err)
			case len(maps) == len(kept):
				return maps, nil
			default:
				maps.close()
			}
		}
	}
	return nil, nil
}

// mapsOf are those of the program's maps that are kept and as spec has them.
func mapsOf(id ebpf.ProgramID, spec *ebpf.CollectionSpec) (_ adopted, err error) {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil, err
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return nil, err
	}
	ids, _ := info.MapIDs()
	found := adopted{}
	defer func() {
		if err != nil {
			found.close()
		}
	}()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return nil, err
		}
		info, err := m.Info()
		if err != nil {
			m.Close()
			return nil, err
		}
		if !isKept(info.Name) || spec.Maps[info.Name].Compatible(m) != nil {
			m.Close()
			continue
		}
		found[info.Name] = m
	}
	return found, nil
}

func isKept(name string) bool {
	for _, k := range kept {
		if k == name {
			return true
		}
	}
	return false
}
