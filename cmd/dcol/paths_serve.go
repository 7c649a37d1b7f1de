package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/paths/known"
	"github.com/detour-collective/dcol/internal/paths/pathserver"
	"github.com/detour-collective/dcol/internal/paths/topology"
)

func pathsServeCommand() *cobra.Command {
	var f pathsFlags
	cmd := &cobra.Command{
		Use:   "serve GRAPH",
		Short: "Answer members which ports lead along which paths of a known network",
		Long: `Reads the graph of a network of CFLB routers, and answers members of the collective which source
ports lead along distinct paths, those with the fewest large flows first. It identifies itself
with the identity that the agent's configuration names. When the file changes, the server reads
it again, so you can mark failed links as down there. docs/paths.md describes the graph, and the
key server of the policy paths, with which agents find this server.`,
		Example: "  dcol paths serve --secret-file /etc/dcol/cflb-secret network.json",
		Args:    cli.Exactly(1),
	}
	listen := cmd.Flags().String("listen", fmt.Sprintf(":%d", pathserver.DefaultPort), "the `address` and port to listen at")
	cmd.Flags().StringVar(&f.secretFile, "secret-file", "", "the `file` with the secret of the network's routers (required)")
	file := cmd.Flags().StringP("config", "c", config.DefaultPath, "the configuration `file`, which names the identity")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.secretFile == "" {
			return errors.New("--secret-file is missing: name the file with the secret that routers and sources share")
		}
		seen, err := os.Stat(args[0])
		if err != nil {
			return err
		}
		network, err := f.network(args[0], nil)
		if err != nil {
			return err
		}
		id, err := memberIdentity(*file)
		if err != nil {
			return err
		}
		log := cli.Log("info")
		server := pathserver.New(id, network, time.Now, log)
		read := func() (err error) {
			if network, err = f.network(args[0], network); err == nil {
				server.Replace(network)
			}
			return err
		}
		go followGraph(cmd.Context(), args[0], seen, readAgain, read, log)
		return servePaths(cmd.Context(), *listen, server, log)
	}
	return cmd
}

// readAgain is the time between looks at the graph's file.
const readAgain = time.Second

// followGraph calls read after each change of a file since it was seen, until ctx ends.
func followGraph(ctx context.Context, name string, seen os.FileInfo, every time.Duration, read func() error, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
		now, err := os.Stat(name)
		if err != nil || os.SameFile(seen, now) && seen.ModTime().Equal(now.ModTime()) && seen.Size() == now.Size() {
			continue
		}
		seen = now
		if err := read(); err != nil {
			log.Warn("the changed graph cannot be used, the last one stays", "err", err)
		} else {
			log.Info("the changed graph is used")
		}
	}
}

// network reads the graph of a network, and its constants. before is the network that was read last; nil:
// none.
func (f *pathsFlags) network(name string, before *known.Network) (_ *known.Network, err error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	g, err := topology.ReadGraph(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f.radix, f.cipher = g.Attributes.Radix, cmp.Or(g.Attributes.Cipher, string(cflb.Speck))
	if f.radix < 2 || f.radix > cflb.MaxRadix {
		return nil, fmt.Errorf("%s: the radix in \"graph\" must be between 2 and %d, not %d", name, cflb.MaxRadix, f.radix)
	}
	s, err := f.scheme()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var n *known.Network
	if before == nil {
		n, err = known.New(g, s)
	} else {
		n, err = before.Renewed(g, s)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}

func servePaths(ctx context.Context, at string, s *pathserver.Server, log *slog.Logger) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
	if err != nil {
		return fmt.Errorf("listen for questions about paths: %w", err)
	}
	log.Info("questions about paths are answered", "at", l.Addr())
	return s.Serve(ctx, l)
}
