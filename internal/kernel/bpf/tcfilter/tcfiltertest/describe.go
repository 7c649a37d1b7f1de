// Package tcfiltertest lists tc filters. Only tests import it.
package tcfiltertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// Describe returns the qdiscs for filters and the filters in the thread's network namespace, one a line.
func Describe(t testing.TB) string {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, link := range links {
		lines = append(lines, describe(t, link)...)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func describe(t testing.TB, link netlink.Link) (lines []string) {
	t.Helper()
	name := link.Attrs().Name
	qdiscs, err := netlink.QdiscList(link)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range qdiscs {
		places := map[uint32]string{netlink.HANDLE_MIN_INGRESS: "ingress", netlink.HANDLE_MIN_EGRESS: "egress"}
		switch q.Type() {
		case "clsact":
		case "ingress": // it lists its only hook under both names
			delete(places, netlink.HANDLE_MIN_EGRESS)
		default:
			continue
		}
		lines = append(lines, name+" "+q.Type())
		for parent, place := range places {
			filters, err := netlink.FilterList(link, parent)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range filters {
				what := f.Type()
				if bpf, ok := f.(*netlink.BpfFilter); ok {
					what = bpf.Name
				}
				lines = append(lines, fmt.Sprintf("%s %s %s", name, place, what))
			}
		}
	}
	return lines
}
