package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"

	"github.com/detour-collective/dcol/internal/trace/hold"
	"github.com/detour-collective/dcol/internal/trace/script"
	"github.com/detour-collective/dcol/internal/trace/wire"
)

// largestScript bounds the size of a script, in bytes.
const largestScript = 1 << 20

// runScript runs a script in Lua.
func (f *traceFlags) runScript(ctx context.Context, destination string) error {
	file, err := os.Open(f.script)
	if err != nil {
		return err
	}
	defer file.Close()
	code, err := io.ReadAll(io.LimitReader(file, largestScript+1))
	if err != nil {
		return err
	}
	if len(code) > largestScript {
		return fmt.Errorf("%s is larger than a script may be, %d bytes", f.script, largestScript)
	}
	addr, err := f.resolve(ctx, destination, false, false)
	if err != nil {
		return err
	}
	conn, err := wire.Open(addr, f.device)
	if err != nil {
		return err
	}
	defer conn.Close()
	return script.Run(ctx, f.script, string(code), &script.Host{
		Net: conn, Source: conn.Source(), Destination: addr, Name: destination, MaxHops: f.hops, Out: os.Stdout,
		Random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		Hold: func(source, port uint16) (func() error, error) {
			table, err := hold.New()
			if err != nil {
				return nil, err
			}
			if err := table.Add(hold.Flow{Source: source, Destination: netip.AddrPortFrom(addr, port)}); err != nil {
				_ = table.Close() // the rule's error matters more
				return nil, err
			}
			return table.Close, nil
		},
	}, script.Limits{})
}
