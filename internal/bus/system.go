package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// claimsUpdate is the subject at which the servers of an external cluster receive new versions of an account.
const claimsUpdate = "$SYS.REQ.CLAIMS.UPDATE"

const setTimeout = 10 * time.Second

// System is a coordinator's connection to the system account of an external cluster. It sends the account after every
// reconnect, because the account may have changed while the servers were not reachable.
type System struct {
	*link
	authority *Authority
	connected chan struct{}
	cancel    context.CancelFunc
	running   sync.WaitGroup
}

// ConnectSystem connects with a JWT of Authority.SystemJWT.
func ConnectSystem(c Config, a *Authority) (*System, error) {
	s := &System{authority: a, connected: make(chan struct{}, 1)}
	changed := c.Changed
	c.Changed = func(state State) {
		if state.Connected {
			select {
			case s.connected <- struct{}{}:
			default: // a reconnect is already pending
			}
		}
		if changed != nil {
			changed(state)
		}
	}
	var err error
	if s.link, err = connect(c, "system"); err != nil {
		return nil, err
	}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	s.running.Go(func() { s.repeat(ctx) })
	return s, nil
}

// Close closes the connection.
func (s *System) Close() {
	s.cancel()
	s.link.Close()
	s.running.Wait()
}

func (s *System) repeat(ctx context.Context) {
	for {
		select {
		case <-s.connected:
		case <-ctx.Done():
			return
		}
		account, err := s.authority.AccountJWT()
		if err == nil {
			brief, cancel := context.WithTimeout(ctx, setTimeout)
			err = s.SetAccount(brief, account)
			cancel()
		}
		if err != nil && ctx.Err() == nil {
			s.config.Log.Warn("bus: the servers may not know who was expelled", "err", err)
		}
	}
}

// SetAccount sends the JWT that Authority.Revoke has returned to all servers, and returns when one has accepted it.
// Servers that miss it get it from the others.
func (s *System) SetAccount(ctx context.Context, accountJWT string) error {
	const doing = "tell the bus's servers whom to let in"
	answer, err := s.nats.RequestWithContext(ctx, claimsUpdate, []byte(accountJWT))
	if err != nil {
		return fmt.Errorf("%s: %w", doing, sayWhy(err))
	}
	var result struct {
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &result); err != nil {
		return fmt.Errorf("%s: read the answer: %w", doing, err)
	}
	if result.Error != nil {
		return fmt.Errorf("%s: the server refuses: %s", doing, result.Error.Description)
	}
	return nil
}
