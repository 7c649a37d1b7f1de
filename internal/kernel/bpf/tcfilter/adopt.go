package tcfilter

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Maps holds maps of an earlier process by their names in the programs.
type Maps map[string]*ebpf.Map

// Close closes the maps.
func (m Maps) Close() {
	for _, each := range m {
		each.Close()
	}
}

// Adopt returns maps that an earlier process left: those named kept, of filters with the given name at ingress, if they
// match spec. It returns none without CAP_SYS_ADMIN, or if another version of the programs had different maps.
func Adopt(handle *netlink.Handle, name string, spec *ebpf.CollectionSpec, kept ...string) (Maps, error) {
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
		for _, filter := range there.named(name) {
			maps, err := mapsOf(ebpf.ProgramID(filter.Id), spec, kept)
			switch {
			case errors.Is(err, unix.EPERM):
				return nil, nil
			case errors.Is(err, unix.ENOENT): // it was removed in the meantime
			case err != nil:
				return nil, fmt.Errorf("take over the maps of the filter %s on %s: %w", filter.Name, link.Attrs().Name, err)
			case len(maps) == len(kept):
				return maps, nil
			default:
				maps.Close()
			}
		}
	}
	return nil, nil
}

// mapsOf returns the maps of a program that are named kept and match spec.
func mapsOf(id ebpf.ProgramID, spec *ebpf.CollectionSpec, kept []string) (_ Maps, err error) {
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
	found := Maps{}
	defer func() {
		if err != nil {
			found.Close()
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
		if !slices.Contains(kept, info.Name) || spec.Maps[info.Name].Compatible(m) != nil {
			m.Close()
			continue
		}
		found[info.Name] = m
	}
	return found, nil
}
