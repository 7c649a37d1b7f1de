package main

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/paths/topology"
	"github.com/detour-collective/dcol/lab/datacentre"
)

// published are the figures of G. Detal, 2014, sections 5.2.2 and 5.6.3, about three data centres of some 600 servers.
const published = `
Published (Detal 2014, 5.2.2 and 5.6.3; about 600 servers each): several next hops for 70 %, several paths for more than
80 %; at most 10 next hops and 64 paths, both for BCube; at most 6 hops; 20 bits. The parameters of the published
topologies are not known here.
`

func diversityCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diversity [FILE...]",
		Short: "Count the next hops and paths in data centres and in given networks",
		Long: `Computes how many next hops routers have towards each server, and how many shortest paths lead
from server to server. It does this for the data centres FatTree, VL2 and BCube with some 600
servers, and for each FILE, a list of links as "dcol paths calibrate" reads it. It also prints the
published figures.`,
		RunE: func(_ *cobra.Command, files []string) error { return printDiversity(os.Stdout, files) },
	}
}

func printDiversity(out io.Writer, files []string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "network\tnodes\tends\tnext hops: several\tmost\tpaths: several\tmost\thops\tbits")
	row := func(name string, n *topology.Network, ends []int) {
		c := n.Calibrate(cflb.PortsOnly.Bits(), ends)
		count := len(ends)
		if ends == nil {
			count = c.Nodes
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%.1f %%\t%d\t%.1f %%\t%d\t%d\t%d\n", name, c.Nodes, count,
			100*topology.Several(c.NextHops), c.Radix, 100*topology.Several(c.Paths), c.MostPaths, c.Hops, c.Needed)
	}
	for _, x := range []struct {
		name string
		*datacentre.Topology
	}{
		{"FatTree, 14 ports", datacentre.FatTree(14)},
		{"VL2, 8 and 16 ports, 20 servers a rack", datacentre.VL2(8, 16, 20)},
		{"BCube, 8 ports, 3 levels", datacentre.BCube(8, 2)},
		{"BCube, 5 ports, 4 levels", datacentre.BCube(5, 3)},
	} {
		n, servers := x.Graph()
		row(x.name, n, servers)
	}
	for _, file := range files {
		n, err := readNetwork(file)
		if err != nil {
			return err
		}
		row(file, n, n.Leafs())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprint(out, published)
	return err
}

func readNetwork(file string) (*topology.Network, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	n, err := topology.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}
