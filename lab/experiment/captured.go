package experiment

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/detour-collective/dcol/lab/testbed"
)

// connectLimit bounds one attempt to reach the server before a run.
const connectLimit = 5 * time.Second

// awaitCaptured waits until the kernel leads connections of the client's host to the relay, if the procedure wants
// that. The agent does not report this. So awaitCaptured makes connections until one has a loopback address as its
// local address.
func (x *execution) awaitCaptured(ctx context.Context) error {
	if !x.procedure.Capture {
		return nil
	}
	host := x.lab.net.Host(x.workload.Client)
	return x.lab.agents.all[x.lab.Scenario.ClientAgent()].Await(ctx, agentLimit, func() error {
		captured, err := testbed.On(host, func() (bool, error) {
			c, err := net.DialTimeout("tcp", x.target.String(), connectLimit)
			if err != nil {
				return false, err
			}
			local, _ := c.LocalAddr().(*net.TCPAddr)
			return local.IP.IsLoopback(), c.Close()
		})
		switch {
		case err != nil:
			return fmt.Errorf("connect to %v from %s: %w", x.target, host.Name(), err)
		case !captured:
			return errors.New("programs' connections are not led to the relay yet")
		}
		return nil
	})
}
