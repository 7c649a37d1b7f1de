package bus

import (
	"context"
	"encoding/json"
	"fmt"
)

// claimsUpdate is where servers of an external cluster take new versions of an account.
const claimsUpdate = "$SYS.REQ.CLAIMS.UPDATE"

// System is a coordinator's connection to the servers of an external cluster themselves.
type System struct{ *link }

// ConnectSystem connects with a JWT of Authority.SystemJWT.
func ConnectSystem(c Config) (*System, error) {
	l, err := connect(c, "system")
	if err != nil {
		return nil, err
	}
	return &System{link: l}, nil
}

// SetAccount takes what Authority.Revoke returned to all servers, and returns when one has taken it. It is
// to be repeated after every connect, as a server may have been away.
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
