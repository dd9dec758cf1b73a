#include "flare/rpc/generic_service.h"

namespace flare {

GenericService::~GenericService() = default;

}  // namespace flare
