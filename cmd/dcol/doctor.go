package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/agent/client"
	"github.com/detour-collective/dcol/internal/agent/transport"
	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/relay"
	"github.com/detour-collective/dcol/internal/doctor"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/trace/present"
	"github.com/detour-collective/dcol/internal/ui"
)

// doctorTimeout bounds all checks together.
const doctorTimeout = 20 * time.Second

func doctorCommand() *cobra.Command {
	var path, server string
	var port int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check that this host has what dcol needs, and explain how to fix what is missing",
		Long: `Checks each requirement of dcol on this host, and explains how to fix what is missing. It
changes nothing. The exit code is 1 if a check failed.

With --path it also probes the path to a server, as "dcol trace" does: whether MPTCP and
in-band detours get through, and if not, between which hops they are stopped. What the agent's
own probes found on that path and on those to waypoints is shown with its age.`,
		Example: "  dcol doctor --path server.example",
		Args:    cli.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), doctorTimeout)
			defer cancel()
			env := doctor.Host()
			env.Now = time.Now()
			var report doctor.Report
			patiently(always("the checks of this host"), func() {
				examineMember(ctx, env, path)
				report = doctor.NewReport(doctor.Examine(ctx, env, doctor.Checks()))
			})
			var found *present.Report
			var err error
			patiently(always("answers to the probes of the path to "+server), func() {
				found, err = examinePath(cmd.Context(), server, port)
			})
			if err != nil {
				return err
			}
			var remembered []api.ProbedPath
			if found != nil {
				remembered = rememberedPaths(cmd.Context(), path, found.Destination)
			}
			show := func() error {
				if err := report.Text(os.Stdout); err != nil || found == nil {
					return err
				}
				fmt.Println()
				return errors.Join(found.Text(os.Stdout), ui.Probed(os.Stdout, remembered, time.Now()))
			}
			if asJSON {
				show = func() error {
					return printJSON(struct {
						doctor.Report
						Path       *present.Report  `json:"path,omitempty"`
						Remembered []api.ProbedPath `json:"path_remembered,omitempty"`
					}{report, found, remembered})
				}
			}
			if err := show(); err != nil {
				return err
			}
			if !report.Healthy() {
				return cli.ExitCode(1)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&path, "config", "c", config.DefaultPath, "the configuration `file`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON ("+doctor.Schema+")")
	cmd.Flags().StringVar(&server, "path", "", "also probe the path to a `SERVER`; needs root")
	cmd.Flags().IntVar(&port, "port", 443, "the server's TCP `port`")
	return cmd
}

// examinePath probes whether MPTCP and in-band detours get through to a server. Without a server, it sends
// nothing.
func examinePath(ctx context.Context, server string, port int) (*present.Report, error) {
	if server == "" {
		return nil, nil
	}
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("--port must be between 1 and 65535, not %d", port)
	}
	f := &traceFlags{port: port, hops: 30}
	report, err := f.verdicts(ctx, server, []string{"mptcp", "in-band"})
	if err != nil {
		return nil, fmt.Errorf("probe the path to %s: %w", server, err)
	}
	return &report, nil
}

// rememberedPaths returns what the agent's own probes found on the path to a server and on the paths to
// waypoints. It returns nothing if no agent runs, or if the agent does not probe.
func rememberedPaths(ctx context.Context, configuration, server string) []api.ProbedPath {
	socket := config.DefaultSocket
	if c, err := config.Load(configuration); err == nil {
		socket = c.Socket()
	}
	addr, err := netip.ParseAddr(server)
	if err != nil {
		return nil
	}
	const limit = 5 * time.Second // the agent answers at once
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	why, err := api.Dial(socket).Why(ctx, api.WhyRequest{Server: netip.AddrPortFrom(addr, 0)})
	if err != nil {
		return nil // the checks report on the agent
	}
	return why.Probed
}

// examineMember adds the configuration, the identity that it names, and the agent's answers to env.
func examineMember(ctx context.Context, env *doctor.Env, path string) {
	socket := config.DefaultSocket
	env.Config.Path = path
	c, err := config.Load(path)
	if err != nil {
		env.Config.Err, env.Identity.Err = err, err
	} else {
		env.Config = doctorConfig(c, path)
		socket = c.Socket()
		open := collective.Load
		if c.Collective.Joined() {
			open = collective.Open // an expired certificate is still examined
		}
		identity, err := open(collective.Files{
			Certificate: c.Identity.Certificate, Key: c.Identity.Key, CA: c.Identity.CA, CRL: c.Identity.CRL,
		}, slog.New(slog.DiscardHandler))
		if err != nil {
			env.Identity.Err = err
		} else {
			env.Identity.NotAfter, env.Identity.NotBefore = identity.Self().NotAfter, identity.Self().NotBefore
		}
	}
	status, err := api.Dial(socket).Status(ctx)
	switch {
	case err == nil:
		env.AgentRuns, env.AgentProblems = true, status.Problems
		if status.Client != nil {
			env.Sampling, env.Choice = (*doctor.Sampling)(status.Client.Sampling), doctorChoice(&status.Client.Steering)
			c := status.Client.Converting
			env.Converting = &doctor.Converting{Wanted: c.Use != string(config.ConvertNever), Admitted: len(c.Converters), Offered: c.Offered}
			for _, r := range c.Refused {
				env.Converting.Refused = append(env.Converting.Refused, r.Name+": "+r.Why)
			}
			for _, x := range c.Converters {
				if x.Excluded {
					env.Converting.Excluded = append(env.Converting.Excluded, fmt.Sprintf("%s at %v", x.Name, x.Addr.Addr()))
				}
			}
		}
		env.Converter = doctorConverter(status.Relay)
		if status.Serving != nil {
			env.Outside = doctorOutside(status.Serving.Outside, status.Collective != nil)
		}
		env.Collective = doctorCollective(status.Collective)
		if env.Config.Options {
			env.Unannounced = unannounced(ctx, socket)
		}
	case !errors.Is(err, api.ErrNoAgent):
		env.AgentUnasked = err
	}
}

// unannounced asks the agent where it announces no TCP options.
func unannounced(ctx context.Context, socket string) (u doctor.Unannounced) {
	t, err := api.Dial(socket).Transport(ctx)
	if err != nil || t.Options == nil {
		return u // the agent's status names what is wrong with the options
	}
	u.Internet = !t.Options.UnannouncedInternet.IsZero()
	for _, n := range t.Options.Unannounced {
		u.Networks = append(u.Networks, n.Network)
	}
	return u
}

// doctorChoice returns what is wrong with the operator's choice of waypoints.
func doctorChoice(s *api.Steering) *doctor.Choice {
	out := &doctor.Choice{Warning: s.Warning}
	for _, w := range slices.Concat(s.Use, s.Avoid) {
		if w.Unknown {
			out.Unknown = append(out.Unknown, w.Name)
		}
	}
	return out
}

func doctorCollective(c *api.Collective) *doctor.Collective {
	if c == nil {
		return nil
	}
	return &doctor.Collective{
		Connected: c.Coordinator.Connected, Why: c.Coordinator.Why, Members: c.Members,
		Renewal: c.Certificate.Why, Expelled: c.Certificate.Expelled,
		Unreached: c.Record.Reachable != nil && !*c.Record.Reachable && len(c.Record.Addresses) > 0,
	}
}

// doctorConverter returns this host's converter for others, or nil if it does not run.
func doctorConverter(r *api.Relay) *doctor.Converter {
	if r == nil {
		return nil
	}
	for _, p := range r.Parts {
		if p.Name == relay.PartServe {
			return &doctor.Converter{Listen: p.Listen, Problem: p.Problem}
		}
	}
	return nil
}

func doctorOutside(o *api.Outside, joined bool) *doctor.Outside {
	if o == nil { // an older agent
		return nil
	}
	return &doctor.Outside{
		Address: o.Address, Leaves: nat.Leaves(o.Leaves), NAT: o.NAT, Why: o.Why, Asked: o.Asked, Answered: o.Answered,
		Own: o.Own, Router: o.Router, Opened: len(o.Opened) > 0, Problem: o.Problem, Fix: o.Fix, Punches: joined,
	}
}

func doctorConfig(c *config.Config, path string) doctor.Config {
	words := func(kinds []config.Kind) []string {
		var list []string
		for _, k := range kinds {
			list = append(list, string(k))
		}
		return list
	}
	var congestion []string
	for _, t := range c.Congestion {
		if !slices.Contains(congestion, t.Use) {
			congestion = append(congestion, t.Use)
		}
	}
	var tunnelMark uint32
	if use := client.Converting(c.Client, c.Waypoint.Marks); use != nil {
		tunnelMark = use.TunnelMark
	}
	return doctor.Config{
		TunnelMark: tunnelMark,
		Congestion: congestion, Options: transport.WantsOptions(c.Options),
		Path: path, Client: c.Has(config.RoleClient), Waypoint: c.Has(config.RoleWaypoint), Listen: c.Session.Listen, Joined: c.Collective.Joined(),
		Kinds: words(c.Client.Kinds), Cgroup: c.Client.Cgroup,
		Offers: words(c.Waypoint.Offers), Authenticator: c.Waypoint.InBandAuthenticator,
		OpenVPNPort: c.Waypoint.OpenVPNPort, PortMapping: c.Waypoint.PortMapping, Bandwidth: c.Waypoint.Bandwidth > 0, Marks: c.Waypoint.Marks,
		SendsFastOpen: c.Client.Converter.FastOpen && c.Client.Converter.Use != config.ConvertNever, TakesFastOpen: c.Waypoint.ConverterFastOpen,
	}
}
