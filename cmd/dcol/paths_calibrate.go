package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/paths/topology"
)

func calibrateCommand() *cobra.Command {
	var bits int
	cmd := &cobra.Command{
		Use:   "calibrate FILE",
		Short: "Compute the constants of CFLB that fit a network",
		Long: `Reads a list of links, "NODE NODE [COST]" on each line, or a graph in the node-link form of JSON,
as NetworkX writes it and "dcol paths serve" reads it. Computes all shortest paths between all nodes,
or between the hosts if the graph has nodes with "host": true. Prints how many next hops routers
have and how many paths pairs have, the radix and the number of bits that CFLB needs, and the pairs
whose paths cannot be controlled fully with the bits at hand. FILE may be - for standard input.`,
		Example: `  dcol paths calibrate topology.txt
  dcol paths calibrate --bits 48 network.json`,
		Args: cli.Exactly(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if bits < 1 || bits > cflb.MaxBits {
				return fmt.Errorf("--bits must be between 1 and %d, not %d", cflb.MaxBits, bits)
			}
			in := io.Reader(os.Stdin)
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			n, err := topology.Read(in)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			printCalibration(n.Calibrate(bits, n.Leafs()))
			return nil
		},
	}
	cmd.Flags().IntVar(&bits, "bits", cflb.PortsOnly.Bits(), "the `number` of controlled bits: 32 for both ports")
	return cmd
}

func printCalibration(c topology.Calibration) {
	fmt.Printf("network          %d nodes, %d links\n", c.Nodes, c.Links)
	several := c.Pairs - c.Paths[1]
	fmt.Printf("pairs            %d, of which %d (%.1f %%) have several paths; at most %d\n",
		c.Pairs, several, percent(several, c.Pairs), c.MostPaths)
	fmt.Printf("next hops        %s of the pairs of a router and a destination\n", distribution(c.NextHops))
	fmt.Printf("paths            %s of the pairs\n", distribution(c.Paths))
	fmt.Printf("radix            %d: no router has more next hops\n", c.Radix)
	fmt.Printf("longest path     %d hops\n", c.Hops)
	fmt.Printf("with %3d bits    a path selector has %d positions\n", c.Bits, c.Length)
	if c.Needed > 0 {
		fmt.Printf("bits needed      %d\n", c.Needed)
	} else {
		fmt.Printf("bits needed      more than %d: no packet has as many\n", cflb.MaxBits)
	}
	fmt.Printf("not controllable %d pairs (%.2f %%) with %d bits\n", c.Uncontrolled, percent(c.Uncontrolled, c.Pairs), c.Bits)
}

// distribution describes which share of the elements has the values 1, 2, 3 and so on. From 5 on, it
// groups values in ranges, each twice as long as the one before. The last element of counts includes all
// larger values.
func distribution(counts []int) string {
	all := 0
	for _, n := range counts {
		all += n
	}
	var parts []string
	for first := 1; first < len(counts); {
		last := first
		if first > 4 {
			last = 2 * (first - 1)
		}
		sum := 0
		for _, n := range counts[first:min(last+1, len(counts))] {
			sum += n
		}
		label := fmt.Sprint(first)
		switch {
		case last >= len(counts):
			label += " or more"
		case last > first:
			label += fmt.Sprint(" to ", last)
		}
		if sum > 0 {
			parts = append(parts, fmt.Sprintf("%s: %.1f %%", label, percent(sum, all)))
		}
		first = last + 1
	}
	return strings.Join(parts, ", ")
}

func percent(part, all int) float64 {
	if all == 0 {
		return 0
	}
	return 100 * float64(part) / float64(all)
}
