package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/tomlfile"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/hold"
	"github.com/detour-collective/dcol/internal/trace/present"
	"github.com/detour-collective/dcol/internal/trace/probe"
	"github.com/detour-collective/dcol/internal/trace/recipe"
	"github.com/detour-collective/dcol/internal/trace/vantage"
	"github.com/detour-collective/dcol/internal/trace/wire"
)

// traceFlags are the flags of `dcol trace`.
type traceFlags struct {
	probe, device string
	four, six     bool
	hops, port    int
	asJSON, print bool
	recipe        string
	script        string
	all           bool
}

// defaultProbe has the options that matter to MPTCP. Its port is that of --port.
const defaultProbe = vantage.DefaultProbe

// probeAnswers names what a user waits for after a command has sent probes.
const probeAnswers = "answers to the probes"

func traceCommand() *cobra.Command {
	var f traceFlags
	cmd := &cobra.Command{
		Use:   "trace DESTINATION",
		Short: "Find out what the path to a host does to packets, and where",
		Long: `Sends packets whose time to live ends at each hop of the path, and compares what the
routers quote of them with what was sent. A change is behind the last hop that quoted the old
value, and no further than the first that quoted the new one. It needs root.

docs/trace.md has the language of probes, and explains the output. Recipes answer common
questions by one or more traces each:

` + recipeList(),
		Example: `  dcol trace server.example
  dcol trace --recipe mptcp server.example
  dcol trace -p 'IP / tcp{dst=443} / mss(1460) / MPCAPABLE / WSCALE' server.example`,
		Args: cli.Exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), args[0]) },
	}
	cmd.AddCommand(traceCampaignCommand(), traceFiguresCommand())
	cmd.Flags().StringVarP(&f.probe, "probe", "p", "", "the `probe` to send, such as 'IP / tcp{dst=443} / MPCAPABLE'")
	cmd.Flags().IntVar(&f.port, "port", 80, "the TCP `port` of probes that name none")
	cmd.Flags().BoolVarP(&f.four, "ipv4", "4", false, "use IPv4")
	cmd.Flags().BoolVarP(&f.six, "ipv6", "6", false, "use IPv6")
	cmd.Flags().IntVar(&f.hops, "hops", 30, "the `number` of hops at most")
	cmd.Flags().StringVarP(&f.device, "interface", "i", "", "the `interface` to send from")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON ("+present.Schema+")")
	cmd.Flags().BoolVar(&f.print, "print", false, "print the packet in hexadecimal, and send nothing; needs no root")
	cmd.Flags().StringVar(&f.recipe, "recipe", "", "answer one question; the `NAME` is one of those above")
	cmd.Flags().BoolVar(&f.all, "all", false, "run all recipes: a summary first, then details")
	cmd.MarkFlagsMutuallyExclusive("ipv4", "ipv6")
	cmd.Flags().StringVarP(&f.script, "script", "s", "", "run a script in Lua from a `file`")
	cmd.MarkFlagsMutuallyExclusive("probe", "recipe", "all", "script")
	cmd.MarkFlagsMutuallyExclusive("print", "recipe", "all", "script")
	cmd.MarkFlagsMutuallyExclusive("json", "script")
	_ = cmd.MarkFlagFilename("script", "lua")
	_ = cmd.RegisterFlagCompletionFunc("recipe", cobra.FixedCompletions(recipe.Names(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (f *traceFlags) run(ctx context.Context, destination string) error {
	if f.port < 1 || f.port > 65535 {
		return fmt.Errorf("--port must be between 1 and 65535, not %d", f.port)
	}
	if f.hops < 1 || f.hops > trace.MaxHops {
		return fmt.Errorf("--hops must be between 1 and %d, not %d", trace.MaxHops, f.hops)
	}
	if f.recipe != "" && !slices.Contains(recipe.Names(), f.recipe) {
		return fmt.Errorf("there is no recipe %q%s", f.recipe, tomlfile.Nearest(f.recipe, recipe.Names()))
	}
	if f.recipe != "" || f.all {
		return f.runRecipes(ctx, destination)
	}
	if f.script != "" {
		return f.runScript(ctx, destination)
	}
	text := f.probe
	if text == "" {
		text = fmt.Sprintf(defaultProbe, f.port)
	}
	stack, err := probe.Parse(text)
	if err != nil {
		return err
	}
	six, said := stack.IPv6()
	if said && (six && f.four || !six && f.six) {
		return errors.New("the probe has another IP version than -4 or -6 asks for: leave the flag out, or change the probe")
	}
	addr, err := f.resolve(ctx, destination, six, said)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	if f.print {
		built, err := stack.Build(probe.Env{Source: unspecified(addr), Destination: addr, Random: random})
		if err != nil {
			return err
		}
		fmt.Println(hex.EncodeToString(built.Packet.Bytes()))
		return nil
	}
	conn, err := wire.Open(addr, f.device)
	if err != nil {
		return err
	}
	defer conn.Close()
	built, err := stack.Build(probe.Env{Source: conn.Source(), Destination: addr, Random: random})
	if err != nil {
		return err
	}
	if built.Packet.Dst() != addr {
		return fmt.Errorf("the probe goes to %v: give that as the destination", built.Packet.Dst())
	}
	release := f.holdBack(hold.Flow{Source: built.Packet.From().Port(), Destination: built.Packet.To()}, built.Packet.TCP != nil)
	defer release()
	var path *trace.Path
	patiently(always(probeAnswers), func() {
		path, err = trace.Run(ctx, conn, built.Packet, trace.Options{MaxHops: f.hops, FixedID: built.FixedID})
	})
	if err != nil {
		return err
	}
	if f.asJSON {
		return printJSON(present.JSON(destination, path, built.Packet))
	}
	return present.Text(os.Stdout, destination, path, built.Packet)
}

// holdBack holds back the kernel's resets of a probe's connection. If it fails, the trace goes on: the
// kernel then resets the connection when the server answers.
func (f *traceFlags) holdBack(flow hold.Flow, tcp bool) (release func()) {
	if !tcp {
		return func() {}
	}
	h, err := hold.New()
	if err == nil {
		err = h.Add(flow)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "the kernel will reset what the server answers: %v\n", err)
	}
	if h == nil {
		return func() {}
	}
	return func() { _ = h.Close() }
}

// unspecified returns a source address for a packet that is only printed.
func unspecified(destination netip.Addr) netip.Addr {
	if destination.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// resolve finds the destination's address of the IP version that is asked for.
func (f *traceFlags) resolve(ctx context.Context, name string, six, said bool) (netip.Addr, error) {
	network := "ip"
	switch {
	case f.four || said && !six:
		network = "ip4"
	case f.six || said && six:
		network = "ip6"
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	addrs, err := addressesOf(ctx, network, name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find the address of %q: %w", name, err)
	}
	for _, a := range addrs {
		if a = a.Unmap(); network != "ip" || a.Is4() {
			return a, nil
		}
	}
	return addrs[0].Unmap(), nil
}
