//! The base service: it says who the plugin is and what may be configured, and
//! takes the configuration.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::proto::base::base_plugin_server::BasePlugin;
use crate::proto::base::{
    ConfigSchemaRequest, ConfigSchemaResponse, PluginInfoRequest, PluginInfoResponse, PluginType,
    SetConfigRequest, SetConfigResponse,
};
use crate::server::ServedPlugin;
use crate::{schema, values};
use ostler_model::json::JsonObject;
use ostler_model::plugin::PluginKind;
use ostler_plugin::{Plugin, schema::one_line};

/// The only version of Nomad's plugin interfaces.
const API: &str = "v0.1.0";

/// Answers the calls of the base service.
#[derive(Clone)]
pub(crate) struct Base {
    /// The plugin that is served.
    pub served: Arc<ServedPlugin>,
}

#[tonic::async_trait]
impl BasePlugin for Base {
    async fn plugin_info(
        &self,
        _request: Request<PluginInfoRequest>,
    ) -> Result<Response<PluginInfoResponse>, Status> {
        let plugin = self.served.found.described_plugin();
        let kind = match plugin.manifest().kind {
            PluginKind::Driver => PluginType::Driver,
            PluginKind::Device => PluginType::Device,
        };
        Ok(Response::new(PluginInfoResponse {
            r#type: kind.into(),
            plugin_api_versions: vec![API.to_owned()],
            plugin_version: plugin.version().to_owned(),
            name: plugin.name().to_string(),
        }))
    }

    async fn config_schema(
        &self,
        _request: Request<ConfigSchemaRequest>,
    ) -> Result<Response<ConfigSchemaResponse>, Status> {
        let found = &self.served.found;
        let there = found.configuration(&JsonObject::default());
        let spec = schema::spec(config_schema(found.described_plugin()).text(), &there);
        Ok(Response::new(ConfigSchemaResponse { spec: Some(spec) }))
    }

    async fn set_config(
        &self,
        request: Request<SetConfigRequest>,
    ) -> Result<Response<SetConfigResponse>, Status> {
        let given = request.into_inner().msgpack_config;
        let schema = config_schema(self.served.found.described_plugin());
        let given = values::configuration(&given, schema.text())
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let config = self.served.found.configuration(&given);
        let wrong = schema.check(&config);
        if !wrong.is_empty() {
            return Err(Status::invalid_argument(one_line(&wrong)));
        }
        self.served.configure(config);
        Ok(Response::new(SetConfigResponse {}))
    }
}

fn config_schema(plugin: &Plugin) -> &schema::ConfigSchema {
    match plugin {
        Plugin::Driver(plugin) => &plugin.config_schema,
        Plugin::Device(plugin) => &plugin.config_schema,
    }
}
